"""Sizes that stand for others too: what is computed of them and decided by them is recorded.

A recording is made with one set of sizes and can be repeated with another: it computes the same
expressions, and says whether every decision comes out the same. Whoever gets hold of the number
itself (as an index, in a hash, through numpy) decides that it is this number: recorded as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Number = Any
"""An ``int``, or a :class:`Size`."""


class Recording:
    """Expressions of sizes in the order in which they were made, and decisions between them."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._steps: list[tuple[int, Callable[[Any, Any], Any], int, int, Any]] = []
        self._places: dict[Any, int] = {}
        self._inputs: list[int] = []
        self._decided: set[Any] = set()
        self._closed = False

    def close(self) -> None:
        """Ends the recording: what is computed or decided later would not be repeated.

        A size that is still used then raises RuntimeError.
        """
        self._closed = True

    def size(self, value: int) -> Size:
        """A size that will be given: the next one of :meth:`repeat`."""
        place = self._place(("input", len(self._inputs)), value)
        self._inputs.append(place)
        return Size(self, place, value)

    def compute(self, fn: Callable[[Any, Any], Any], x: Number, z: Number) -> Number:
        """``fn(x, z)``, the same size for the same expression."""
        key = fn, *((n.place, True) if type(n) is Size else (n, False) for n in (x, z))
        found = self._places.get(key)
        if found is None:
            self._require_open()
            left, right = self._operand(x), self._operand(z)
            value = fn(self._values[left], self._values[right])
            found = self._place(key, value)
            self._steps.append((found, fn, left, right, None))
        return Size(self, found, self._values[found])

    def decide(self, fn: Callable[[Any, Any], Any], x: Number, z: Number) -> Any:
        """``fn(x, z)`` as it is now; other sizes must have the same."""
        self._require_open()
        left, right = self._operand(x), self._operand(z)
        outcome = fn(self._values[left], self._values[right])
        key = fn, left, right
        if key not in self._decided:
            self._decided.add(key)
            self._steps.append((-1, fn, left, right, outcome))
        return outcome

    def repeat(self, sizes: Sequence[int]) -> list[Any] | None:
        """The values of all expressions for other sizes, or ``None`` if they decide otherwise."""
        values = self._values.copy()
        for place, size in zip(self._inputs, sizes, strict=True):
            values[place] = size
        try:
            for place, fn, left, right, outcome in self._steps:
                if place >= 0:
                    values[place] = fn(values[left], values[right])
                elif fn(values[left], values[right]) != outcome:
                    return None
        except ZeroDivisionError:
            return None
        return values

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("A symbolic size is used after its recording has ended.")

    def _operand(self, x: Number) -> int:
        return x.place if type(x) is Size else self._place(("constant", type(x), x), x)

    def _place(self, key: Any, value: Any) -> int:
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self._values)
            self._values.append(value)
        return found


def _computed(fn: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
    def method(self: Size, other: Any) -> Any:
        if type(other) is not Size and type(other) is not int:
            if isinstance(other, np.ndarray) or not isinstance(other, (int, float, np.number)):
                return NotImplemented
            if isinstance(other, (float, np.inexact)):
                number = self.__index__()
                return fn(other, number) if swapped else fn(number, other)
            other = int(other)
        x, z = (other, self) if swapped else (self, other)
        return self.recording.compute(fn, x, z)

    return method


def _decided(fn: Callable[[Any, Any], Any]) -> Any:
    def method(self: Size, other: Any) -> Any:
        if type(other) is Size:
            if other.place == self.place:
                return fn(0, 0)
        elif isinstance(other, np.number):
            other = other.item()
        elif not isinstance(other, (int, float)):
            return NotImplemented
        return self.recording.decide(fn, self, other)

    return method


class Size:
    """A size of a recording. It is no ``int``, so that none of its uses goes unnoticed.

    Attributes:
        recording: Where it is recorded.
        place: Of its value among those of :meth:`Recording.repeat`.
        value: What it is now.
    """

    __slots__ = ("place", "recording", "value")

    def __init__(self, recording: Recording, place: int, value: int) -> None:
        self.recording = recording
        self.place = place
        self.value = value

    __add__ = __radd__ = _computed(operator.add)
    __sub__, __rsub__ = _computed(operator.sub), _computed(operator.sub, swapped=True)
    __mul__ = __rmul__ = _computed(operator.mul)
    __floordiv__ = _computed(operator.floordiv)
    __rfloordiv__ = _computed(operator.floordiv, swapped=True)
    __mod__, __rmod__ = _computed(operator.mod), _computed(operator.mod, swapped=True)
    __lt__, __le__ = _decided(operator.lt), _decided(operator.le)
    __gt__, __ge__ = _decided(operator.gt), _decided(operator.ge)
    __eq__, __ne__ = _decided(operator.eq), _decided(operator.ne)

    def __neg__(self) -> Any:
        return 0 - self

    def __index__(self) -> int:
        """The number itself: other sizes must be the same one."""
        self.recording.decide(operator.eq, self, self.value)
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __truediv__(self, other: Any) -> Any:
        return self.__index__() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.__index__()

    def __repr__(self) -> str:
        return f"Size({self.value})"
