"""Kinds of values in kernels, by the names that numba has for its types, and how they combine.

Intrinsics and choices of implementations (`partita_cpu.jit.deferred_numba`) are written against
numba's types; these here answer to the same names, so that one definition serves both compilers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class UntranslatableError(Exception):
    """Code that this compiler does not take; numba does. Its message says what was found."""


class Signature(NamedTuple):
    """What a function returns and takes.

    Attributes:
        return_type: The kind of its result.
        args: The kinds of its arguments.
    """

    return_type: Any
    args: tuple[Any, ...]


class Kind:
    """What a value is; calling one makes the signature of a function that returns it."""

    def __call__(self, *args: Any) -> Signature:
        """A signature that returns this kind."""
        return Signature(self, args)


@dataclass(frozen=True)
class Number(Kind):
    """Of so many bits.

    Attributes:
        name: numpy's.
        bitwidth: Bits of a value.
    """

    name: str
    bitwidth: int


@dataclass(frozen=True)
class Integer(Number):
    """A whole number.

    Attributes:
        signed: Whether it has a sign.
    """

    signed: bool


@dataclass(frozen=True)
class Float(Number):
    """A float."""


@dataclass(frozen=True)
class Boolean(Number):
    """Truth: one bit in registers, a byte in arrays."""


@dataclass(frozen=True)
class Array(Kind):
    """Elements that lie together, the last axis innermost.

    Attributes:
        dtype: The kind of its elements.
        ndim: How many axes.
        layout: Always ``"C"``.
    """

    dtype: Any
    ndim: int
    layout: str = "C"


class Tuple(Kind):
    """Some values, perhaps with names.

    Args:
        items: Their kinds.
        record: The class of named tuples that they are the fields of, if any.
    """

    def __init__(self, items: Sequence[Any], record: type | None = None) -> None:
        self.items = tuple(items)
        self.record = record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tuple) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> Any:
        return self.items, self.record


@dataclass(frozen=True)
class Void(Kind):
    """Nothing: what a function returns that has no result, and ``None``."""


class Static(Kind):
    """Something that is known when the kernel is compiled: a function, a module, an element type.

    Args:
        value: That thing.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.value is other.value

    def __hash__(self) -> int:
        return hash(id(self.value))


boolean = bool_ = Boolean("bool", 1)
int8, int16, int32, int64 = (Integer(f"int{bits}", bits, True) for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (Integer(f"uint{bits}", bits, False) for bits in (8, 16, 32, 64))
float32, float64 = Float("float32", 32), Float("float64", 64)
void = none = Void()
intp = int64

_BY_NAME: dict[str, Number] = {
    kind.name: kind
    for kind in (
        boolean,
        int8,
        int16,
        int32,
        int64,
        uint8,
        uint16,
        uint32,
        uint64,
        float32,
        float64,
    )
}


def number_of(dtype: Any) -> Number:
    """The kind of a numpy element type.

    Raises:
        UntranslatableError: It is no number of these.
    """
    found = _BY_NAME.get(np.dtype(dtype).name)
    if found is None:
        raise UntranslatableError(f"elements of type {np.dtype(dtype)}")
    return found


def of_argument(kind: str) -> Kind:
    """The kind of an argument of a kernel; see `partita_cpu.jit.kernel_definition.Kinds`."""
    if kind in _ARGUMENTS:
        return _ARGUMENTS[kind]
    dtype, _, ndim = kind.partition(" ")
    return Array(number_of(dtype), int(ndim))


_ARGUMENTS: dict[str, Kind] = {"int": int64, "float": float64, "single": float32}


def common_kind(a: Any, b: Any) -> Number:
    """The kind in which two numbers are added: 64 bits for integers, the float if there is one.

    Raises:
        UntranslatableError: numba makes something of them that kernels had better not rely on.
    """
    if isinstance(a, Integer) and isinstance(b, Integer):
        if a.signed == b.signed:
            return int64 if a.signed else uint64
        if min(a.bitwidth, b.bitwidth) < 64 and (a if b.signed else b).bitwidth < 64:
            return int64
    elif isinstance(a, Float) and isinstance(b, Float):
        return max(a, b, key=lambda kind: kind.bitwidth)
    elif isinstance(a, Float) or isinstance(b, Float):
        whole, real = (b, a) if isinstance(a, Float) else (a, b)
        if isinstance(whole, Integer) and (real == float64 or whole.bitwidth >= 32):
            return float64
    raise UntranslatableError(f"arithmetic on {a} and {b}")


def joined(a: Any, b: Any) -> Any:
    """The kind of a value that is one of two kinds.

    Raises:
        UntranslatableError: They are not alike.
    """
    if a == b:
        return a
    if isinstance(a, Boolean) and isinstance(b, Integer):
        return b
    if isinstance(a, Integer) and isinstance(b, Boolean):
        return a
    alike = isinstance(a, Integer) and isinstance(b, Integer) and a.signed == b.signed
    if alike or (isinstance(a, Float) and isinstance(b, Float)):
        return max(a, b, key=lambda kind: kind.bitwidth)
    raise UntranslatableError(f"a value that is {a} or {b}")
