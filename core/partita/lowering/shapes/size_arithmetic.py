"""Arithmetic of sizes in one table of integers, which a device's machine code can compute.

Most steps of a recording are sums, products and comparisons of integers. Python takes a tenth of a
microsecond for each, and several times as long where a run has just emptied the caches; machine
code takes some nanoseconds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from partita.lowering.shapes.linear_form import Bounds, within

Array = np.ndarray[Any, Any]

Step = tuple[int, Callable[..., Any], Any, int, Any]
"""Place of the result or -1 for a decision, function, left and right place (or all places and -1),
and what was decided."""

Evaluator = Callable[[Array, int], Callable[[Array], int] | None]
"""Makes what computes a table of steps on so many integers, which it changes, and returns an
:class:`Outcome`, which it also writes to the last of them; ``None`` if it cannot.

A step is four words: its code, the place of its result or what was decided (0 or 1), and its
places; ``WITHIN`` has that of the least integer, behind which the greatest lies. A comparison that
decides nothing, whose result is 0 or 1, has :data:`TOLD` added to its code.
"""


class Outcome(IntEnum):
    """How the steps came out."""

    AS_BEFORE = 0
    OTHERWISE = 1
    TOO_LARGE = 2


class Code(IntEnum):
    """What a step does."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    MOD = 4
    MAX = 5
    MIN = 6
    LT = 7
    LE = 8
    GT = 9
    GE = 10
    EQ = 11
    NE = 12
    WITHIN = 13


TOLD = 16
"""Added to the code of a comparison whose result is a number."""

_VALUES: dict[Callable[..., Any], Code] = {
    operator.add: Code.ADD,
    operator.sub: Code.SUB,
    operator.mul: Code.MUL,
    operator.floordiv: Code.DIV,
    operator.mod: Code.MOD,
}
_DECISIONS: dict[Callable[..., Any], Code] = {
    operator.lt: Code.LT,
    operator.le: Code.LE,
    operator.gt: Code.GT,
    operator.ge: Code.GE,
    operator.eq: Code.EQ,
    operator.ne: Code.NE,
}
_OF_MANY: dict[Callable[..., Any], Code] = {max: Code.MAX, min: Code.MIN}
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Numbers(Sequence[Any]):
    """What sizes come to, by their places.

    Attributes:
        integers: All of them as int64; arbitrary where they are none.
        others: Those that are no ``int``, or are too large for 64 bits.
    """

    __slots__ = ("integers", "others")

    def __init__(self, integers: Array, others: dict[int, Any]) -> None:
        self.integers = integers
        self.others = others

    @staticmethod
    def of(values: Sequence[Any]) -> Numbers:
        """Those in a sequence."""
        others = {place: x for place, x in enumerate(values) if not _is_integer(x)}
        integers = [_as_integer(x) if n in others else x for n, x in enumerate(values)]
        return Numbers(np.array(integers, np.int64), others)

    def __len__(self) -> int:
        return self.integers.size

    @property
    def nbytes(self) -> int:
        """What they take, arrays among them included."""
        if not self.others:
            return self.integers.nbytes
        arrays = (x.nbytes for x in self.others.values() if isinstance(x, np.ndarray))
        return self.integers.nbytes + sum(arrays)

    def __getitem__(self, place: Any) -> Any:
        return self.others[place] if place in self.others else self.integers.item(place)

    def listed(self) -> list[Any]:
        """All of them."""
        values: list[Any] = self.integers.tolist()
        for place, value in self.others.items():
            values[place] = value
        return values


def _is_integer(x: Any) -> bool:
    return type(x) is int and _LEAST <= x <= _MOST


def _as_integer(x: Any) -> int:
    """A number of numpy's or a truth as an integer; 0 for what is no integer."""
    whole = isinstance(x, (bool, np.bool_, np.integer))
    return int(x) if whole and _LEAST <= int(x) <= _MOST else 0


class SizeArithmetic:
    """The steps of a recording, of which a table has those that are arithmetic of integers.

    Args:
        steps: In an order in which they can be taken.
        values: What their places have now.
        first: The first place that the steps compute; those before it are given.
        evaluator: Computes tables.
    """

    def __init__(
        self, steps: Sequence[Step], values: Sequence[Any], first: int, evaluator: Evaluator
    ) -> None:
        self._is_int = [_is_integer(x) for x in values]
        self._values = values
        self._bounds: list[int] = []  # whose places are behind the values
        self._count, self._first = len(values), first
        self._rest: list[Step] = []  # for Python: they read what the table computes
        words: list[int] = []
        for step in steps:
            taken = self._words_of(step)
            if taken is not None:
                words += taken
                continue
            self._rest.append(step)
            if step[0] >= 0:
                self._is_int[step[0]] = False  # and so all that is computed of it
        numbers = Numbers.of(values)
        computed = {step[0] for step in steps}
        self._others = {
            place: x
            for place, x in numbers.others.items()
            if place >= first and place not in computed
        }
        self._template = np.array([*numbers.integers.tolist(), *self._bounds, 0], np.int64)
        self._evaluate = evaluator(np.array(words, np.int64), self._template.size)

    def numbers(self, before: Numbers | None, given: Mapping[int, int]) -> Numbers | Outcome:
        """What sizes come to; or why that is not told.

        Args:
            before: Those before the first place; ``None`` if there are none.
            given: Further ones by their places.
        """
        if self._evaluate is None:
            return Outcome.TOO_LARGE
        integers, others = self._template.copy(), self._others.copy()
        if before is not None:
            integers[: self._first] = before.integers
            others |= before.others
        words = integers.data
        try:
            for place, number in given.items():
                words[place] = number
            if outcome := self._evaluate(integers):
                return Outcome(outcome)
            for place, fn, left, right, decided in self._rest:
                places = left if right < 0 else (left, right)
                value = fn(*[others[n] if n in others else words[n] for n in places])
                if place < 0:
                    if value != decided:
                        return Outcome.OTHERWISE
                elif type(value) is int:
                    words[place] = value
                else:
                    others[place] = value
                    words[place] = _as_integer(value)
        except ZeroDivisionError:
            return Outcome.OTHERWISE
        except (OverflowError, ValueError):  # of more than 64 bits
            return Outcome.TOO_LARGE
        return Numbers(integers[: self._count], others)

    def _words_of(self, step: Step) -> list[int] | None:
        """The words of a step; ``None`` if it is Python's."""
        place, fn, left, right, outcome = step
        if right < 0 and fn in _DECISIONS:
            left, right = left
        if right < 0:
            return self._of_many(place, fn, left)
        if fn is within:
            return self._within(left, self._values[right]) if self._is_int[left] else None
        if not (self._is_int[left] and self._is_int[right]):
            return None
        comparison = _DECISIONS.get(fn)
        if place < 0:
            return None if comparison is None else [comparison, int(outcome), left, right]
        if comparison is not None and type(self._values[place]) is bool:
            self._is_int[place] = True
            return [comparison + TOLD, place, left, right]
        code = _VALUES.get(fn)
        return [code, place, left, right] if code is not None and self._is_int[place] else None

    def _of_many(
        self, place: int, fn: Callable[..., Any], places: Sequence[int]
    ) -> list[int] | None:
        """The largest or least of several, two at a time."""
        code = _OF_MANY.get(fn)
        if code is None or not all(self._is_int[n] for n in (place, *places)) or len(places) < 2:
            return None
        words: list[int] = []
        before = places[0]
        for number in places[1:]:
            words += (code, place, before, number)
            before = place
        return words

    def _within(self, place: int, bounds: Bounds) -> list[int]:
        low, high = bounds
        at = self._count + len(self._bounds)
        self._bounds += (
            _LEAST if low <= _LEAST else math.ceil(low),
            _MOST if high >= _MOST else math.floor(high),
        )
        return [Code.WITHIN, 1, place, at]
