"""Values in kernels: what they are, and LLVM's values that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita_cpu.jit.deferred_numba import ir
from partita_cpu.jit.translation import kinds
from partita_cpu.jit.translation.kinds import (
    Array,
    Boolean,
    Float,
    Integer,
    Number,
    Static,
    Tuple,
    UntranslatableError,
    Void,
)


@dataclass(frozen=True)
class Value:
    """A value.

    Attributes:
        kind: What it is.
        parts: LLVM's values: of a number itself, of an array its address and its sizes, of a tuple
            those of its items; nothing of what is known when the kernel is compiled.
    """

    kind: Any
    parts: tuple[Any, ...] = ()

    @property
    def number(self) -> Any:
        """The one part of a number."""
        return self.parts[0]


NOTHING = Value(kinds.void)


def word(number: int) -> Any:
    """A constant of 64 bits."""
    return ir.Constant(ir.IntType(64), number)


def integer(number: int) -> Value:
    """A constant as Python's integers are in kernels."""
    if not -(2**63) <= number < 2**63:
        raise UntranslatableError(f"the integer {number}")
    return Value(kinds.int64, (word(number),))


def constant(kind: Number, number: Any) -> Value:
    """A constant of some kind."""
    number = float(number) if isinstance(kind, Float) else int(number)
    return Value(kind, (ir.Constant(register_type(kind), number),))


def known(value: Value) -> Any:
    """The number that a value is known to be, or ``None``."""
    if isinstance(value.kind, Number) and isinstance(value.number, ir.Constant):
        return value.number.constant
    return None


def of_python(thing: Any) -> Value:
    """What something is that a kernel names and that does not change: numbers, tuples, the rest."""
    if thing is None:
        return NOTHING
    if type(thing) is int:
        return integer(thing)
    if isinstance(thing, (bool, np.bool_)):
        return constant(kinds.boolean, thing)
    if type(thing) is float:
        return constant(kinds.float64, thing)
    if isinstance(thing, np.number):
        return constant(kinds.number_of(thing.dtype), thing.item())
    if isinstance(thing, tuple):
        record = type(thing) if hasattr(thing, "_fields") else None
        return tuple_of([of_python(item) for item in thing], record)
    return Value(Static(thing))


def tuple_of(items: Sequence[Value], record: type | None = None) -> Value:
    """A tuple of values."""
    kind = Tuple([item.kind for item in items], record)
    return Value(kind, tuple(part for item in items for part in item.parts))


def items_of(value: Value) -> list[Value]:
    """The items of a tuple.

    Raises:
        UntranslatableError: It is no tuple.
    """
    if not isinstance(value.kind, Tuple):
        raise UntranslatableError(f"{value.kind} as a tuple")
    return list(taken(value.kind.items, value.parts))


def taken(found: Sequence[Any], parts: Sequence[Any]) -> Iterator[Value]:
    """Values of kinds, from all of their parts in order."""
    start = 0
    for kind in found:
        stop = start + len(part_types(kind))
        yield Value(kind, tuple(parts[start:stop]))
        start = stop


def register_type(kind: Any) -> Any:
    """LLVM's type of a number."""
    if isinstance(kind, Float):
        return ir.FloatType() if kind.bitwidth == 32 else ir.DoubleType()
    if isinstance(kind, Number):
        return ir.IntType(kind.bitwidth)
    raise UntranslatableError(f"{kind} as a number")


def memory_type(kind: Number) -> Any:
    """LLVM's type of an element of an array."""
    return ir.IntType(8) if isinstance(kind, Boolean) else register_type(kind)


def element_bytes(kind: Number) -> int:
    """Bytes of an element of an array."""
    return max(8, kind.bitwidth) // 8


def part_types(kind: Any) -> list[Any]:
    """LLVM's types of the parts of a value."""
    if isinstance(kind, Number):
        return [register_type(kind)]
    if isinstance(kind, Array):
        return [memory_type(kind.dtype).as_pointer(), *[ir.IntType(64)] * kind.ndim]
    if isinstance(kind, Tuple):
        return [part for item in kind.items for part in part_types(item)]
    if isinstance(kind, (Void, Static)):
        return []
    raise UntranslatableError(f"values of kind {kind}")


def cast(builder: Any, value: Value, kind: Any) -> Value:
    """A value as another kind: numbers as C casts them, tuples item by item.

    Args:
        builder: llvmlite's, at the place where the code goes.
        value: The value.
        kind: What it becomes.

    Raises:
        UntranslatableError: It cannot be.
    """
    if value.kind == kind:
        return value
    if isinstance(kind, Tuple):
        items = items_of(value)
        if len(items) != len(kind.items):
            raise UntranslatableError(f"a tuple of {len(items)} as one of {len(kind.items)}")
        both = zip(items, kind.items, strict=True)
        return tuple_of([cast(builder, item, wanted) for item, wanted in both], kind.record)
    if not isinstance(value.kind, Number) or not isinstance(kind, Number):
        raise UntranslatableError(f"{value.kind} as {kind}")
    return Value(kind, (_cast_number(builder, value, kind),))


def _cast_number(builder: Any, value: Value, kind: Number) -> Any:
    given, number, there = value.kind, value.number, known(value)
    to = register_type(kind)
    if isinstance(kind, Boolean):
        zero = ir.Constant(number.type, 0)
        if isinstance(given, Float):
            return builder.fcmp_unordered("!=", number, zero)
        return builder.icmp_unsigned("!=", number, zero)
    if isinstance(given, Float):
        if isinstance(kind, Float):
            if there is not None and kind.bitwidth == 32:
                return ir.Constant(to, float(np.float32(there)))
            return (builder.fpext if kind.bitwidth > given.bitwidth else builder.fptrunc)(
                number, to
            )
        signed = isinstance(kind, Integer) and kind.signed
        return (builder.fptosi if signed else builder.fptoui)(number, to)
    signed = isinstance(given, Integer) and given.signed
    if isinstance(kind, Float):
        if there is not None:
            return ir.Constant(to, float(np.float32(there) if kind.bitwidth == 32 else there))
        return (builder.sitofp if signed else builder.uitofp)(number, to)
    if there is not None:
        return ir.Constant(to, _wrapped(int(there), kind))
    if kind.bitwidth == given.bitwidth:
        return number
    if kind.bitwidth < given.bitwidth:
        return builder.trunc(number, to)
    return (builder.sext if signed else builder.zext)(number, to)


def _wrapped(number: int, kind: Number) -> int:
    number &= (1 << kind.bitwidth) - 1
    if isinstance(kind, Integer) and kind.signed and number >> (kind.bitwidth - 1):
        number -= 1 << kind.bitwidth
    return number
