"""The dimensions in which steps of a life vary, and sequences of steps that cover all pairs.

A fault shows where two things meet that each are right alone: an array that begins at an odd
address, in the second run of a model that was imported. No check names such a pair. Here each
dimension of a step has levels, and steps are drawn greedily so that any two levels of different
dimensions meet in one step, and any two in steps that follow each other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Dimensions = Mapping[str, Sequence[str]]
"""By dimension its levels; the first one is the plainest."""

DIMENSIONS: Dimensions = {
    "model": ("itself", "its twin"),
    "origin": (
        *("compiled", "compiled anew", "of another core", "imported", "imported from a view"),
        *("cached", "counting", "set otherwise", "of a file", "reshaped", "in parts"),
    ),
    "request": ("the last one", "another", "a new one", "the first one", "one that is left alone"),
    "way": (
        *("infers", "is started", "calls back", "infers what was set", "infers five times"),
        *("is called", "is cancelled", "goes through a queue", "runs beside another"),
        *("is interrupted", "is started and left alone", "runs", "runs into outputs"),
        *("runs on what was brought", "is bound", "is bound and rebound", "is stopped midway"),
        *("infers sizes in turn", "goes round"),
    ),
    "inputs": (
        *("new", "at an offset", "read-only", "frozen", "strided", "reversed", "in Fortran order"),
        *("unaligned", "in a file", "of a subclass", "lists", "tensors", "of another type"),
        *("big-endian", "array-likes", "where they lay", "results", "one for all", "in one block"),
    ),
    "named": ("by name", "in order", "by index", "by port"),
    "outputs": ("its own", "shared", "given", "given again", "given at an offset", "one given"),
    "sizes": (
        *("few", "as before", "more", "fewer", "the first again", "in another order", "one"),
        *("none", "vectors", "of a page", "of a cache", "of its code"),
    ),
    "values": ("usual", "as before", "one changed", "zeros", "special", "of its code"),
    "again": ("no", "with the results written to", "on others, behind the event"),
    "thread": ("here", "a new thread", "a thread of a pool"),
    "before": (
        *("nothing", "collect", "fail", "refuse", "compile", "drop", "ask", "export", "read"),
        *("write", "cancel", "set", "wait an hour", "run often", "soil the heap", "damage"),
        "explain",
    ),
    "process": (
        *("usual", "errors of arithmetic raise", "warnings raise", "nothing is collected"),
        *("threads switch often", "elsewhere", "profiled", "numbers are printed short"),
        *("nothing is there to print to", "limits are its own"),
    ),
    "read": ("in order", "by name", "as tensors", "later", "not at all"),
}
"""In what steps differ."""


@dataclass(frozen=True)
class Step:
    """One step of a life.

    Attributes:
        levels: By dimension the level.
        number: What else it draws follows from this, whatever steps go before.
    """

    levels: Mapping[str, str]
    number: int

    def plainer(self, dimension: str) -> Step:
        """The same with the first level of a dimension."""
        return replace(self, levels={**self.levels, dimension: DIMENSIONS[dimension][0]})

    def __str__(self) -> str:
        unusual = (
            f"{dimension} {level}"
            for dimension, level in self.levels.items()
            if level != DIMENSIONS[dimension][0]
        )
        return "; ".join(unusual) or "a plain run"


_Places = np.ndarray[Any, Any]
_CANDIDATES = 12
"""So many steps are drawn for each that is taken: that with the most pairs that are new."""


class Planner:
    """Draws steps, and remembers which pairs of levels have met, in all lives of a check.

    Args:
        seed: Which steps.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # the same steps each time
        self._names = [(d, level) for d, levels in DIMENSIONS.items() for level in levels]
        self._place = {name: place for place, name in enumerate(self._names)}
        count = len(self._names)
        self._met = np.zeros((count, count), np.int32)
        self._followed = np.zeros((count, count), np.int32)
        self._number = 1000 * seed

    def steps(self, count: int, levels: Dimensions) -> Iterator[Step]:
        """Draws a life.

        Args:
            count: How many steps.
            levels: Those that a model and a device allow.
        """
        before: _Places | None = None
        for _ in range(count):
            drawn = [
                np.array([self._place[d, self._random.choice(of)] for d, of in levels.items()])
                for _ in range(_CANDIDATES)
            ]
            best = max(drawn, key=lambda one: self._news(one, before))
            self._met[np.ix_(best, best)] += 1
            if before is not None:
                self._followed[np.ix_(before, best)] += 1
            before = best
            self._number += 1
            yield Step(dict(self._names[place] for place in best), self._number)

    def _news(self, one: _Places, before: _Places | None) -> float:
        """How much is new in a step: each pair counts the less, the more often it has been."""
        score = float(np.sum(1 / (1 + self._met[np.ix_(one, one)])))
        if before is not None:
            score += float(np.sum(1 / (1 + self._followed[np.ix_(before, one)])))
        return score

    def share(self) -> tuple[float, float]:
        """Of pairs of levels, which share has met in a step, and in steps one behind the other."""
        apart = np.array([[a[0] != b[0] for b in self._names] for a in self._names])
        return float(np.mean(self._met[apart] > 0)), float(np.mean(self._followed > 0))
