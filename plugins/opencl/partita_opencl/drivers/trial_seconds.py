"""How long trials take, for whoever reads the log, and how long their processes may be silent.

Most of a first compile are trials. Whether a process that says nothing hangs is known by what it
computes rather than by the clock: where many share a machine, it may be kept from that for minutes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_log = logging.getLogger(__name__)

LONGEST = 30
"""By the clock, a process may be silent for so many times what is allowed, if it computes."""

_STANDSTILL = 1e-3
"""What computes less than this share of the time waits; looking for its parent takes that much."""


@dataclass
class Stages:
    """Parts of what takes its time, with the second at which each had ended.

    Attributes:
        begun: When it began, by ``time.monotonic``.
        ended: Name and seconds of each part, in order.
    """

    begun: float = field(default_factory=time.monotonic)
    ended: list[str] = field(default_factory=list)

    def end(self, name: str) -> None:
        """Notes that a part has ended."""
        self.ended.append(f"{name} at {time.monotonic() - self.begun:.2f} s")


@contextlib.contextmanager
def logged(what: str) -> Iterator[Stages]:
    """Logs at level INFO how long the block took, with its parts if it names them."""
    stages = Stages()
    try:
        yield stages
    finally:
        parts = f" ({', '.join(stages.ended)})" if stages.ended else ""
        _log.info("%s took %.2f s%s", what, time.monotonic() - stages.begun, parts)


class SilenceTimer:
    """How long a process has said nothing.

    It is too long when the process has used up what it is allowed, by the clock and in processor
    time, or stood still for as long. Where the system does not tell what processes compute, the
    clock alone decides.

    Args:
        seconds: What is allowed.
        began: When it began, by a clock.
        computed: Seconds of processor time that the process had used then, if the system tells.
        standing: How long it may stand still; by default as long as it may be silent.
    """

    def __init__(
        self, seconds: float, began: float, computed: float | None, standing: float | None = None
    ) -> None:
        self._seconds = seconds
        self._standing = seconds if standing is None else standing
        self._began = self._moved_at = began
        self._before = self._moved_to = computed

    def stood_still(self, now: float) -> float:
        """For how many seconds the process has computed nothing, when it was last looked at."""
        return 0.0 if self._moved_to is None else now - self._moved_at

    def is_too_long(self, now: float, computed: float | None) -> bool:
        """Whether the process hangs; to be asked every now and then, from its beginning on.

        Args:
            now: Seconds of the clock.
            computed: What the process has used so far.
        """
        lasted = now - self._began
        if self._before is None or self._moved_to is None or computed is None:
            return lasted > self._seconds
        if abs(computed - self._moved_to) > self._seconds * _STANDSTILL:
            self._moved_at, self._moved_to = now, computed
        stood_still = now - self._moved_at > self._standing
        used_up = lasted > self._seconds and computed - self._before > self._seconds
        return stood_still or used_up or lasted > LONGEST * self._seconds
