"""Runs on tensors that stay the same: calls with everything bound, joined over programs."""

from __future__ import annotations

from collections.abc import Sequence

from partita import Repetition
from partita.errors import InferError, PartitaError
from partita_cpu.blas import use_threads
from partita_cpu.native.walker import NativeStretch, Stretch


class CpuRepetition(Repetition):
    """Stretches of one program, or of several that run one after another.

    Args:
        stretches: The calls in order.
        threads: Threads that BLAS may use.
    """

    def __init__(self, stretches: Sequence[Stretch], threads: int) -> None:
        self._stretches = list(stretches)
        self._threads = threads

    def __call__(self) -> None:
        """Makes the calls."""
        use_threads(self._threads)
        try:
            for stretch in self._stretches:
                stretch()
        except PartitaError:
            raise
        except Exception as error:
            raise InferError(f"Device CPU failed: {type(error).__name__}: {error}") from error

    def followed_by(self, other: Repetition) -> CpuRepetition | None:
        """Both; where compiled kernels meet, the threads go from one program into the next."""
        if not isinstance(other, CpuRepetition) or other._threads != self._threads:
            return None
        last, first = self._stretches[-1], other._stretches[0]
        both = last.followed_by(first) if isinstance(last, NativeStretch) else None
        if both is None:
            return CpuRepetition([*self._stretches, *other._stretches], self._threads)
        joined = [*self._stretches[:-1], both, *other._stretches[1:]]
        return CpuRepetition(joined, self._threads)
