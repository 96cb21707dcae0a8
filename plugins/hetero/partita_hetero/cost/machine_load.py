"""How busy others keep the machine while something is measured, and what that is worth then.

Other processes take processors, caches and memory from a device on this machine: what is measured
beside them says less of the device than of them. Such a measurement is used, is kept with the load
that it was taken under, and is taken again when somebody asks for it and the machine is quieter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, overload

from partita.contract.explanation import QUIET
from partita_hetero.cost import clock

LEAST_SECONDS = 0.25
"""The system counts the time of processes by hundredths of a second, and a look takes no less."""

LATELY = 2.0
"""For so many seconds a look is believed."""


class LoadWatch:
    """Tells how much others use the processors from now on."""

    def __init__(self) -> None:
        self._start, self._others = clock.seconds(), clock.others_seconds()

    def share(self) -> float:
        """The share, from 0 to 1, since the watch was made; waits if that was just now."""
        if self._others is None:
            return clock.lost_share(LEAST_SECONDS)
        missing = LEAST_SECONDS - (clock.seconds() - self._start)
        if missing > 0:
            clock.sleep(missing)
        others = clock.others_seconds()
        if others is None:
            return 0.0
        elapsed = clock.seconds() - self._start
        return min(1.0, max(0.0, (others - self._others) / elapsed))


class Loaded(Protocol):
    """Something that was measured."""

    @property
    def busy(self) -> float:
        """The share of the processors that others used meanwhile."""


T = TypeVar("T", bound=Loaded)


class MachineLoad:
    """How busy the machine is, and what of earlier measurements is as good as new ones would be."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._share = 0.0

    @overload
    def best(self, known: T | None, measure: Callable[[], T]) -> T: ...

    @overload
    def best(self, known: T | None, measure: Callable[[], T | None]) -> T | None: ...

    def best(self, known: T | None, measure: Callable[[], T | None]) -> T | None:
        """What is known, or what is measured now if nothing is known, or if that may be better.

        What was measured on a quiet machine stays. What was not is measured again if the machine is
        quieter now, and so is, once, what is measured now. Of several the quietest is returned.

        Args:
            known: What is known.
            measure: Measures; ``None`` if that is impossible.
        """
        if known is not None and not self.is_quieter_than(known.busy):
            return known
        found = self._quieter(known, measure())
        if found is not None and found is not known and self.is_quieter_than(found.busy):
            return self._quieter(found, measure())
        return found

    @staticmethod
    def _quieter(one: T | None, other: T | None) -> T | None:
        if one is None or other is None:
            return one if other is None else other
        return other if other.busy < one.busy else one

    def is_quieter_than(self, busy: float) -> bool:
        """Whether others use the processors so much less now that it is worth measuring again.

        Args:
            busy: The share of the processors that others used when it was measured.
        """
        if busy <= QUIET:
            return False
        if clock.seconds() - self._looked > LATELY:
            self._share, self._looked = LoadWatch().share(), clock.seconds()
        return is_quieter(self._share, busy)


def is_quieter(now: float, before: float) -> bool:
    """Whether a measurement is better than an earlier one because others let it run.

    Args:
        now: The share of the processors that others use now.
        before: What they used at the earlier one.
    """
    return before > QUIET and now <= max(QUIET, before / 2)


def busy_note(what: str, busy: float) -> str:
    """A sentence for people about something that was measured on a busy machine; empty if quiet.

    Args:
        what: What was measured, in the plural.
        busy: The share of the processors that others used meanwhile.
    """
    if busy <= QUIET:
        return ""
    return (
        f"{what} were measured while other processes used {busy:.0%} of the processors, and may be "
        "too slow; they are measured again when the machine is quieter"
    )
