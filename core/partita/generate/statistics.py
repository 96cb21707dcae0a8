"""How fast text was generated: tokens, seconds and bytes of both phases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Statistics:
    """What a generator has done since it was made or :meth:`clear` was called.

    Prefill reads prompts, many tokens at once; decode generates, one token of each sequence at
    once. Seconds are of the runs and of choosing the tokens behind them.

    Attributes:
        prefill_tokens: Tokens of prompts that were read; those found in the cache are not counted.
        prefill_seconds: How long it took.
        prefill_runs: In how many runs.
        decode_tokens: Tokens generated in decode; the first of a text comes out of prefill.
        decode_seconds: How long it took.
        decode_runs: In how many runs.
        decode_places: Places of the cache that these runs read, over all sequences.
        first_run_seconds: How much of all seconds went into runs of a size that none had before:
            devices prepare their programs in these.
    """

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    prefill_runs: int = 0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    decode_runs: int = 0
    decode_places: int = 0
    first_run_seconds: float = 0.0

    @property
    def prefill_rate(self) -> float | None:
        """Tokens per second; ``None`` if there were none."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_tokens else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second; ``None`` if there were none."""
        return self.decode_tokens / self.decode_seconds if self.decode_tokens else None

    def clear(self) -> None:
        """Begins anew."""
        self.__dict__.update(Statistics().__dict__)

    def decode_bytes(self, weight_bytes: int, place_bytes: int) -> int:
        """Bytes that decode had to read.

        Args:
            weight_bytes: What one run reads of the weights.
            place_bytes: Keys and values of one place of the cache.
        """
        return self.decode_runs * weight_bytes + self.decode_places * place_bytes
