"""Symbolic sizes: integers that trace what is computed from them, and what is decided by them.

A :class:`Recording` is made with one set of sizes and can be replayed with another: it evaluates
the same expressions, and says whether every decision comes out the same. Using the number itself
(as an index, in a hash, through numpy) is a decision too, for exactly this number, and is recorded
as one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

import numpy as np

from partita.lowering.shapes.expressions import Expressions
from partita.lowering.shapes.linear_form import (
    ANY,
    NOT_NEGATIVE,
    SWAPPED,
    Bounds,
    Operator,
    combined,
)

Number = Any
"""An ``int``, or a :class:`Size`."""


class NoKeyError(TypeError):
    """A symbolic size was to be found in a set or a dictionary."""


class Recording(Expressions):
    """What is computed of sizes, and decided by them.

    Attributes:
        exact: Whether somebody got hold of a number since the recording began, or was forked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.exact = False

    def sizes(self) -> list[Size]:
        """All values there are, as sizes of this recording."""
        return [Size(self, place, value) for place, value in enumerate(self._values)]

    def inputs(self, sizes: Sequence[Size]) -> list[Size]:
        """Those of :meth:`sizes` that are given to :meth:`repeat`."""
        return [sizes[place] for place in self._inputs]

    def settled_inputs(self) -> list[int]:
        """The numbers of those given sizes that are one number, by what was decided so far."""
        forms = [self._forms[place] for place in self._inputs]
        bounds = [ANY if form is None else self._bounds_of(form) for form in forms]
        return [number for number, (low, high) in enumerate(bounds) if low == high]

    def size(self, value: int) -> Size:
        """A size that will be given, not less than 0: the next one of :meth:`repeat`."""
        return self._input(value, NOT_NEGATIVE)

    def integer(self, value: int) -> Size:
        """The same for one that can be less than 0."""
        return self._input(value, ANY)

    def _input(self, value: int, bounds: Bounds) -> Size:
        place = self._new_atom(("input", len(self._inputs)), value, bounds)
        self._inputs.append(place)
        return Size(self, place, value)

    def compute(self, fn: Operator, x: Number, z: Number) -> Number:
        """``fn(x, z)``, the same size for the same expression; a number if it always is that."""
        if type(x) is not Size:
            key = fn, x, z.at, "right"
        elif type(z) is not Size:
            key = fn, x.at, z, "left"
        else:
            key = fn, x.at, z.at, "both"
        found = self._places.get(key)
        if found is None:
            self._require_open()
            found = self._places[key] = self._result(fn, self._operand(x), self._operand(z))
        form = self._forms[found]
        if form is not None and not form.factor:
            return form.offset
        return Size(self, found, self._values[found])

    def evaluate(self, fn: Callable[..., Any], *args: Any) -> Number:
        """``fn(*args)``: called again for other sizes, so that decisions in it are not recorded.

        Args:
            fn: A function of numbers, without effects, that gives the same for the same ones, and
                an ``int`` for all or for none; it is known by itself, so that one made anew each
                time is computed as often.
            args: Sizes, and constants that can be keys of dictionaries.
        """
        self._require_open()
        places = tuple(map(self._operand, args))
        key = fn, places
        found = self._places.get(key)
        if found is None:
            value = fn(*(self._values[place] for place in places))
            if type(value) is int:
                found = self._new_atom(key, value, ANY)
            else:
                found = self._place(key, value, None)
            self._steps.append((found, fn, places, -1, None))
        return Size(self, found, self._values[found])

    def decide(self, fn: Operator, x: Number, z: Number) -> Any:
        """``fn(x, z)`` as it is now; other sizes must have the same."""
        self._require_open()
        left, right = self._operand(x), self._operand(z)
        one, other = self._forms[left], self._forms[right]
        if one is not None and other is not None and fn in SWAPPED:
            if not one.factor:
                fn, one, other = SWAPPED[fn], other, one
            if not other.factor or one.atom == other.atom:
                factor, number = one.factor - other.factor, other.offset - one.offset
                return self._compare(fn, factor, one.atom, number)
            left, right = self._linear(one), self._linear(other)
            outcome = self._decide(fn, left, right)
            if fn is (operator.eq if outcome else operator.ne):
                self._unify(one, other)
            return outcome
        return self._decide(fn, left, right)

    def never_less(self, x: Number, z: Number) -> bool:
        """Whether ``x >= z`` follows from what was decided."""
        one, other = (self._forms[self._operand(n)] for n in (x, z))
        if one is None or other is None:
            return False
        difference = combined(operator.sub, one, other)
        if difference is None:
            return self._bounds_of(one).low >= self._bounds_of(other).high
        return self._bounds_of(difference).low >= 0

    def _operand(self, x: Number) -> int:
        return x.at if type(x) is Size else self._constant(x)


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
            if other.at == self.at:
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
        at: Where its value is among those of the recording, which may not be repeated.
        value: What it is now.
    """

    __slots__ = ("at", "recording", "value")

    def __init__(self, recording: Recording, at: int, value: int) -> None:
        self.recording = recording
        self.at = at
        self.value = value

    @property
    def place(self) -> int:
        """The place of its value among those of :meth:`Recording.repeat`, which computes it."""
        return self.recording.ask_for(self.at)

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

    def __abs__(self) -> Any:
        return self.recording.evaluate(abs, self)

    def __index__(self) -> int:
        """The number itself: other sizes must be the same one."""
        self.recording.exact = True
        self.recording.decide(operator.eq, self, self.value)
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __hash__(self) -> int:
        """None: what is kept under a size in some table would be found by others."""
        raise NoKeyError("A symbolic size is not a key: it stands for other numbers too.")

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __truediv__(self, other: Any) -> Any:
        return self.__index__() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.__index__()

    def __str__(self) -> str:
        return str(self.__index__())

    def __format__(self, form: str) -> str:
        return format(self.__index__(), form)

    def __repr__(self) -> str:
        return f"Size({self.value})"


def integer(n: Number) -> Number:
    """A size as it is, any other number as an ``int``."""
    return n if type(n) is Size else int(n)


def present(n: Number) -> int:
    """What a number is now, which is no decision: for what holds for all others too."""
    return n.value if type(n) is Size else n


def settled(n: Number) -> Any:
    """The number itself; sizes for which it is another one are decided otherwise.

    For what is chosen by a number that is the same for many sizes.
    """
    if type(n) is Size:
        n.recording.decide(operator.eq, n, n.value)
        n = n.value
    return n


def has_varied(numbers: Iterable[Number]) -> bool:
    """Whether there are sizes among numbers, and others of their class have decided otherwise."""
    return any(type(n) is Size and n.recording.varied for n in numbers)


def assumed(n: Number) -> Number:
    """A size as it is; once others of its class have decided otherwise, what it is now.

    For choices between ways that all serve any size, of which none is much slower: the first
    recording asks, and a second one serves the sizes that it does not, instead of one for each way.
    """
    return n.value if has_varied([n]) else n


def found_equal(x: Number, z: Number) -> bool:
    """Whether two numbers are the same, for what is merely faster where they are.

    That they are not is no decision, as it serves all others too. That they are is one, unless it
    is known for all; once sizes of their class have decided otherwise, it is not asked.
    """
    if always_equal(x, z):
        return True
    return present(x) == present(z) and not has_varied([x, z]) and bool(x == z)


def same_number(n: Number) -> tuple[bool, int]:
    """A key under which only numbers are kept that are the same for all sizes."""
    return (True, n.at) if type(n) is Size else (False, int(n))


def evaluated(fn: Callable[..., Any], *args: Any) -> Any:
    """``fn(*args)``; recorded as one expression where there are sizes among the numbers.

    See :meth:`Recording.evaluate`.
    """
    for arg in args:
        if type(arg) is Size:
            return arg.recording.evaluate(fn, *args)
    return fn(*args)


def integers(numbers: Sequence[Number]) -> np.ndarray[Any, Any]:
    """Numbers as an array of int64; of objects where there are sizes among them."""
    symbolic = any(type(n) is Size for n in numbers)
    return np.array(numbers, object if symbolic else np.int64)


def highest(*numbers: Number) -> Number:
    """The largest of numbers; what is recorded leaves out those that none of all sizes makes it."""
    kept: list[Number] = []
    for n in numbers:
        if not any(never_less(other, n) for other in kept):
            kept = [*(other for other in kept if not never_less(n, other)), n]
    return kept[0] if len(kept) == 1 else evaluated(max, *kept)


def never_less(x: Number, z: Number) -> bool:
    """Whether it is known, without a decision, that a number is not less than another one."""
    for n in (x, z):
        if type(n) is Size:
            return n.recording.never_less(x, z)
    return bool(x >= z)


def always_equal(x: Number, z: Number) -> bool:
    """Whether it is known, without a decision, that two numbers are the same."""
    return never_less(x, z) and never_less(z, x)


def holds_sizes(thing: Any) -> bool:
    """Whether there are sizes in something: in its elements, attributes, or what it closes over."""
    if isinstance(thing, (Size, str, bytes, int, float, np.generic, np.dtype, type(None), type)):
        return type(thing) is Size
    if isinstance(thing, np.ndarray):
        return thing.dtype == object and any(map(holds_sizes, thing.reshape(-1).tolist()))
    if isinstance(thing, Mapping):
        return any(map(holds_sizes, thing.values()))
    if isinstance(thing, (list, tuple, set, frozenset)):
        return any(map(holds_sizes, thing))
    if isinstance(thing, functools.partial):
        return holds_sizes(thing.args) or holds_sizes(thing.keywords)
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        return holds_sizes([*cells, thing.__defaults__])
    if is_dataclass(thing):
        return any(holds_sizes(getattr(thing, field.name)) for field in fields(thing))
    return False
