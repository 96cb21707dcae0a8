"""Linear forms ``factor * atom + offset`` of integers: arithmetic, comparison and bounds.

Most expressions of a symbolic size have this form. For two forms of one atom it is known whether
they are equal, and comparing one with a number is comparing its atom with another number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

Operator = Callable[[Any, Any], Any]


class LinearForm(NamedTuple):
    """``factor * atom + offset``.

    Attributes:
        factor: 0 of a number that is known.
        atom: Place of the value that it is computed of; -1 of a number that is known.
        offset: What is added.
    """

    factor: int
    atom: int
    offset: int


class Bounds(NamedTuple):
    """The least and the greatest integer that a value can be; floats where there is no such one."""

    low: float
    high: float


ANY = Bounds(-math.inf, math.inf)
"""What is known of an integer of which nothing is known."""

NOT_NEGATIVE = Bounds(0, math.inf)
"""What is known of a size."""

SWAPPED: dict[Operator, Operator] = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}
"""Comparisons, and what they are with their sides the other way round."""


def combined(fn: Operator, x: LinearForm, z: LinearForm) -> LinearForm | None:
    """``fn(x, z)`` as a linear form of the same atom; ``None`` if it is none."""
    if fn is operator.add or fn is operator.sub:
        if x.factor and z.factor and x.atom != z.atom:
            return None
        factor, offset = fn(x.factor, z.factor), fn(x.offset, z.offset)
        return _form(factor, max(x.atom, z.atom), offset)
    if fn is operator.mul:
        if x.factor and z.factor:
            return None
        form, number = (z, x.offset) if z.factor else (x, z.offset)
        return _form(form.factor * number, form.atom, form.offset * number)
    if z.factor or not z.offset or x.factor % z.offset:
        return None  # a division with a remainder that is not known
    if fn is operator.floordiv:
        return _form(x.factor // z.offset, x.atom, x.offset // z.offset)
    return _form(0, -1, x.offset % z.offset) if fn is operator.mod else None


def _form(factor: int, atom: int, offset: int) -> LinearForm:
    return LinearForm(factor, atom if factor else -1, offset)


def bounds_of(fn: Operator, x: Bounds, z: Bounds) -> Bounds:
    """Those of ``fn(x, z)``, as far as they are told here."""
    if fn is operator.add:
        return Bounds(x.low + z.low, x.high + z.high)
    if fn is operator.sub:
        return Bounds(x.low - z.high, x.high - z.low)
    if fn is operator.mul and x.low >= 0 and z.low >= 0:
        known = x.high < math.inf and z.high < math.inf
        return Bounds(x.low * z.low, x.high * z.high if known else math.inf)
    if z.low == z.high and z.low > 0:
        if fn is operator.floordiv:
            low, high = (n if math.isinf(n) else n // z.low for n in x)
            return Bounds(low, high)
        if fn is operator.mod:
            return Bounds(0, z.low - 1)
    return ANY


def scaled(form: LinearForm, atom: Bounds) -> Bounds:
    """The bounds of a linear form, by those of its atom."""
    if not form.factor:
        return Bounds(form.offset, form.offset)
    ends = [form.factor * end + form.offset for end in atom]
    return Bounds(min(ends), max(ends))


def within(value: int, bounds: Bounds) -> bool:
    """Whether a value is neither less nor more."""
    return bounds.low <= value <= bounds.high
