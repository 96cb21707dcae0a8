"""Elements, pieces and properties of arrays. No access is checked; negative indices count back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita_cpu.jit.deferred_numba import ir
from partita_cpu.jit.translation import kinds
from partita_cpu.jit.translation.kinds import Array, Boolean, Integer, Static, UntranslatableError
from partita_cpu.jit.translation.values import (
    Value,
    cast,
    element_bytes,
    integer,
    known,
    tuple_of,
    word,
)

Bounds = tuple[Value | None, Value | None]
"""Where a slice begins and ends, if it says so."""


def attribute(builder: Any, array: Value, name: str) -> Value:
    """``array.size`` and the like.

    Raises:
        UntranslatableError: Kernels do not ask for that.
    """
    kind = array.kind
    if name == "size":
        return Value(kinds.int64, (_product(builder, array.parts[1:]),))
    if name == "shape":
        return tuple_of([Value(kinds.int64, (size,)) for size in array.parts[1:]])
    if name == "ndim":
        return integer(kind.ndim)
    if name == "itemsize":
        return integer(element_bytes(kind.dtype))
    if name == "dtype":
        return Value(Static(kind.dtype))
    if name == "ctypes.data":
        return Value(kinds.uint64, (builder.ptrtoint(array.parts[0], ir.IntType(64)),))
    raise UntranslatableError(f"attribute {name} of an array")


def load(builder: Any, array: Value, indices: Sequence[Value | Bounds]) -> Value:
    """An element, or the piece that is left where indices are missing or the last is a slice.

    Raises:
        UntranslatableError: The piece would not lie together.
    """
    kind = array.kind
    *whole, last = indices
    if isinstance(last, tuple):
        return _piece(builder, array, [_single(index) for index in whole], last)
    numbers = [_single(index) for index in indices]
    place = _place(builder, array, numbers)
    if len(numbers) < kind.ndim:
        left = kind.ndim - len(numbers)
        return Value(Array(kind.dtype, left), (place, *array.parts[1 + len(numbers) :]))
    found = builder.load(place)
    if isinstance(kind.dtype, Boolean):
        found = builder.icmp_unsigned("!=", found, ir.Constant(found.type, 0))
    return Value(kind.dtype, (found,))


def store(builder: Any, array: Value, indices: Sequence[Value | Bounds], value: Value) -> None:
    """Writes an element, or the same number to all elements of a slice.

    Raises:
        UntranslatableError: It is an array that is to be written.
    """
    kind = array.kind
    if isinstance(indices[-1], tuple):
        fill(builder, array, indices, value)
        return
    numbers = [_single(index) for index in indices]
    if len(numbers) != kind.ndim:
        raise UntranslatableError("writing to a part of an array")
    given = cast(builder, value, kind.dtype).number
    if isinstance(kind.dtype, Boolean):
        given = builder.zext(given, ir.IntType(8))
    builder.store(given, _place(builder, array, numbers))


def fill(builder: Any, array: Value, indices: Sequence[Value | Bounds], value: Value) -> None:
    """Writes a number to all elements of a piece.

    Raises:
        UntranslatableError: It is an array that is to be written.
    """
    piece = load(builder, array, indices)
    kind = piece.kind
    if not isinstance(kind, Array) or kind.ndim != 1 or isinstance(kind.dtype, Boolean):
        raise UntranslatableError("writing to a part of an array")
    number = cast(builder, value, kind.dtype).number
    address, size = piece.parts
    before = builder.block
    again, inside, behind = map(builder.append_basic_block, ("again", "inside", "behind"))
    builder.branch(again)
    builder.position_at_end(again)
    at = builder.phi(ir.IntType(64))
    at.add_incoming(word(0), before)
    builder.cbranch(builder.icmp_signed("<", at, size), inside, behind)
    builder.position_at_end(inside)
    builder.store(number, builder.gep(address, [at]))
    at.add_incoming(builder.add(at, word(1), flags=("nsw",)), inside)
    builder.branch(again)
    builder.position_at_end(behind)


def _single(index: Value | Bounds) -> Value:
    if isinstance(index, tuple):
        raise UntranslatableError("a slice before other indices")
    return index


def _place(builder: Any, array: Value, indices: Sequence[Value]) -> Any:
    """The address of the first element that indices name."""
    sizes = array.parts[1:]
    if len(indices) > len(sizes):
        raise UntranslatableError(f"{len(indices)} indices of {len(sizes)} axes")
    place = word(0)
    for axis, size in enumerate(sizes):
        if axis:
            place = builder.mul(place, size)
        if axis < len(indices):
            at = _wrapped(builder, indices[axis], size)
            place = at if axis == 0 else builder.add(place, at)
    return builder.gep(array.parts[0], [place])


def _wrapped(builder: Any, index: Value, size: Any) -> Any:
    """An index from the start."""
    if not isinstance(index.kind, Integer):
        raise UntranslatableError(f"an index of kind {index.kind}")
    signed, there = index.kind.signed, known(index)
    at = cast(builder, index, kinds.int64 if signed else kinds.uint64).number
    if not signed or (there is not None and there >= 0):
        return at
    return builder.select(builder.icmp_signed("<", at, word(0)), builder.add(at, size), at)


def _piece(builder: Any, array: Value, before: Sequence[Value], bounds: Bounds) -> Value:
    """What a slice of the last axis leaves."""
    kind = array.kind
    if len(before) + 1 != kind.ndim:
        raise UntranslatableError("a slice of an axis that is not the last")
    row = array.parts[0] if not before else _place(builder, array, before)
    size = array.parts[kind.ndim]
    start, stop = bounds
    first = word(0) if start is None else _bound(builder, start, size)
    last = size if stop is None else _bound(builder, stop, size)
    length = builder.sub(last, first)
    none = builder.icmp_signed("<", length, word(0))
    length = builder.select(none, word(0), length)
    return Value(Array(kind.dtype, 1), (builder.gep(row, [first]), length))


def _bound(builder: Any, bound: Value, size: Any) -> Any:
    """A bound of a slice within the axis."""
    at = _wrapped(builder, bound, size)
    at = builder.select(builder.icmp_signed("<", at, word(0)), word(0), at)
    return builder.select(builder.icmp_signed(">", at, size), size, at)


def _product(builder: Any, sizes: Sequence[Any]) -> Any:
    product = sizes[0] if sizes else word(1)
    for size in sizes[1:]:
        product = builder.mul(product, size)
    return product
