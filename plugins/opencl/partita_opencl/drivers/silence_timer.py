"""Whether a process that says nothing hangs, by what it computes rather than by the clock.

On a machine that many share, a process may be kept from computing for minutes.
"""

from __future__ import annotations

LONGEST = 30
"""By the clock, a process may be silent for so many times what is allowed, if it computes."""

_STANDSTILL = 1e-3
"""What computes less than this share of the time waits; looking for its parent takes that much."""


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
