"""Timing of calls: after a warm-up, several times, within a time limit."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from partita_hetero.cost import clock

STEADY = 1.02
"""Times that differ by less are taken as the same."""

PATIENCE = 2.0
"""Seconds that something may take once in the second call, too."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is spent on one measurement.

    Attributes:
        warm: Runs before those that count; at least 2.
        least: Fewest runs that count; no more are needed if they take the same time.
        most: Most runs that count.
        seconds: No further run begins after that time.
        warm_seconds: Further runs before those that count, for so long at most in all: clocks of
            processors rise with their load.
        least_seconds: Runs go on for so long even if they take the same time: who shares the
            machine may take its memory for a while.
    """

    warm: int = 2
    least: int = 3
    most: int = 15
    seconds: float = 0.4
    warm_seconds: float = 0.0
    least_seconds: float = 0.0


def repeat(call: Callable[[], float], effort: Effort) -> list[float]:
    """Calls as often as the effort says; what the calls return, without the warm-up's.

    The first call never counts, since much is made in it. If the second one takes all the time, it
    is the only one that does, unless it is shorter than `PATIENCE` and the third one shorter still:
    drivers assemble some programs when a call comes again.
    """
    call()
    start = clock.seconds()
    for _ in range(effort.warm - 1):
        result = call()
        elapsed = clock.seconds() - start
        if elapsed > effort.seconds:
            if elapsed > PATIENCE or (result := call()) > effort.seconds:
                return [result]
            break
    while clock.seconds() - start < effort.warm_seconds:
        call()
    start = clock.seconds()
    results: list[float] = []
    while len(results) < effort.most:
        elapsed = clock.seconds() - start
        enough = elapsed >= effort.least_seconds and len(results) >= effort.least
        if enough and (elapsed > effort.seconds or _steady(results)):
            break
        results.append(call())
    return results


def _steady(times: list[float]) -> bool:
    """Whether the slowest is hardly slower than the fastest, so that more runs tell no more."""
    return max(times) <= STEADY * min(times)


def seconds_of(call: Callable[[], object]) -> Callable[[], float]:
    """A call that returns how long the given one takes."""

    def timed() -> float:
        start = clock.seconds()
        call()
        return clock.seconds() - start

    return timed


def median_of(call: Callable[[], object], effort: Effort) -> tuple[float, int]:
    """Median seconds of a call, and of how many runs.

    Args:
        call: What is timed; it warms up first.
        effort: How many runs at least, and for how many seconds.
    """
    times = repeat(seconds_of(call), effort)
    return statistics.median(times), len(times)
