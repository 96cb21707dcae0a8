"""Devices that drift: a submodel that takes many times as long as it did, for a while.

What a submodel usually takes is the median of its first runs. A run that takes more than
HETERO_DRIFT_FACTOR times that, and a millisecond more, counts one up, any other run one down; at
:data:`ENOUGH` the submodel has drifted: most of its last runs were slow. To look at a run costs two
readings of the clock and one comparison. Requests that run side by side wait for one another where
their device does one after another: a run's time is taken as its share of those that did.

Whether it pays to move the submodel is not guessed: the assembly without it and the present one run
the same inputs by turns, under the same load, and the faster one stays. A submodel is raced once,
so nothing moves back and forth.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from collections.abc import Callable, Hashable

from partita_hetero.cost import clock

WARM_UP = 2
"""Runs that do not count: memory is touched and calls are bound in them."""

FIRST = 8
"""Runs whose median is what a submodel usually takes."""

ENOUGH = 8
"""So many slow runs more than others are no accident."""

LEAST_S = 1e-3
"""A run that takes less than this longer is not worth moving anything."""

RACES = 3
"""Runs of each of two assemblies in a race; the shortest one counts."""

PAYS = 0.8
"""A race is won by taking less than this share of the other one's time."""

_SHAPES = 16
"""Sets of input shapes whose times are kept apart."""


class Pace:
    """How long one submodel takes.

    Args:
        factor: How many times as long is slow.
    """

    __slots__ = ("_factor", "_first", "_limit", "_slow", "now", "usual")

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._first: list[float] = []
        self._limit = 0.0  # until it is known, all runs are looked at closely
        self._slow = 0
        self.usual = self.now = 0.0

    def note(self, seconds: float) -> bool:
        """Takes a run; whether the submodel has drifted."""
        if seconds < self._limit:
            if self._slow:
                self._slow -= 1
            return False
        return self._look_at(seconds)

    @property
    def is_slow(self) -> bool:
        """Whether some runs were slow of late, if not enough to tell by itself."""
        return self._slow >= ENOUGH // 2

    def rest(self) -> None:
        """Tells nothing any more."""
        self._limit = math.inf

    def _look_at(self, seconds: float) -> bool:
        if self._limit:
            self._slow += 1
            self.now = seconds
            return self._slow >= ENOUGH
        self._first.append(seconds)
        if len(self._first) == WARM_UP + FIRST:
            self.usual = statistics.median(self._first[WARM_UP:])
            self._limit = max(self.usual * self._factor, self.usual + LEAST_S)
        return False


class Running:
    """How many requests of a model run now; counted by steps that no other thread can divide."""

    def __init__(self) -> None:
        self._runs: list[None] = []

    def __len__(self) -> int:
        return len(self._runs)

    def enter(self) -> None:
        """A run begins."""
        self._runs.append(None)

    def leave(self) -> None:
        """It has ended."""
        self._runs.pop()


class Paces:
    """The paces of one request's submodels, for each set of input shapes.

    Args:
        factor: How many times as long is slow; 0: nothing is looked at.
        running: Counts the runs of the model's requests.
    """

    def __init__(self, factor: float, running: Running) -> None:
        self.watching = factor > 0
        self._factor = factor
        self._running, self._beside = running, 1
        self._known: OrderedDict[Hashable, dict[int, Pace]] = OrderedDict()
        self._at: Hashable = None
        self._paces: dict[int, Pace] = {}
        self.drifted: int | None = None

    def begin(self, shapes: Hashable) -> None:
        """A run begins, of inputs of these shapes, whose times are kept apart from others'."""
        self._running.enter()
        self._beside = len(self._running)
        if shapes == self._at:
            return
        self._at = shapes
        self._paces = self._known.setdefault(shapes, {})
        self._known.move_to_end(shapes)
        if len(self._known) > _SHAPES:
            self._known.popitem(last=False)

    def end(self) -> None:
        """The run has ended, or failed."""
        self._running.leave()

    def note(self, step: int, seconds: float) -> None:
        """Takes a run of a step."""
        seconds /= max(self._beside, len(self._running))
        pace = self._paces.get(step)
        if pace is None:
            pace = self._paces[step] = Pace(self._factor)
        if pace.note(seconds):
            self.drifted = step

    def slow_steps(self) -> list[int]:
        """Steps that were slow of late."""
        return [step for step, pace in self._paces.items() if pace.is_slow]

    def take(self) -> tuple[int, Pace] | None:
        """The step that has drifted, if any; returned once."""
        step, self.drifted = self.drifted, None
        if step is None:
            return None
        pace = self._paces[step]
        pace.rest()
        return step, pace


def race(present: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """The shortest time of each of two, which take turns; the other one warms up first."""
    best = [math.inf, math.inf]
    other()
    for _ in range(RACES):
        for index, run in enumerate((present, other)):
            start = clock.seconds()
            run()
            best[index] = min(best[index], clock.seconds() - start)
    return best[0], best[1]
