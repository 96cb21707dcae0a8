"""Layers that join rows of a table by segment: embedding bags, and maxima of segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("EmbeddingBagPacked", "EmbeddingBagPackedSum")
def packed_bags(at: Site) -> ir.Value:
    """Sums or means of as many rows of a table for each bag."""
    rows = at.emit("Gather", at.inputs[0], at.indices(1))
    if at.has(2):
        rows = at.emit("Mul", rows, _behind(at, at.inputs[2], at.rank(0) - 1))
    joined = "ReduceMean" if _is_mean(at) else "ReduceSum"
    return at.emit(joined, rows, at.const([1], np.int64), keepdims=0)


@translates("EmbeddingSegmentsSum")
def segments_of_rows(at: Site) -> ir.Value:
    """Sums of the rows of a table that belong to each segment."""
    return _bags(at, at.indices(2), at.row(3), default=4)


@translates("EmbeddingBagOffsets", "EmbeddingBagOffsetsSum")
def bags_by_offsets(at: Site) -> ir.Value:
    """Sums or means of rows of a table, where bags are given by their first places."""
    starts, one = at.indices(2), at.const([1], np.int64)
    count = at.size(at.indices(1), 0)
    marks = _filled(at, at.const(0, np.int64), at.emit("Add", count, one))
    begun = _scattered(at, marks, starts, _filled(at, at.const(1, np.int64), at.size(starts, 0)))
    bags = at.emit("Sub", at.emit("CumSum", begun, at.const(0, np.int64)), one)
    bags = at.emit("Slice", bags, at.const([0], np.int64), count)
    return _bags(at, bags, at.size(starts, 0), default=3)


@translates("SegmentMax")
def segment_max(at: Site) -> ir.Value:
    """The largest elements of the rows of each segment, of which some may have none."""
    data, segments, one = at.inputs[0], at.indices(1), at.const([1], np.int64)
    padded = at.emit("Concat", segments, at.const([-1], np.int64), axis=0)
    found = at.emit("Add", at.emit("ReduceMax", padded, at.const([0], np.int64)), one)
    count = at.row(2) if at.has(2) else found
    room = at.emit("Max", found, count)
    number = np.dtype(np.float32) if _is_half(at) else at.dtype(0)
    least = _lowest(number) if number.kind in "iu" else -np.inf
    start = _filled(at, at.const(least, number), room, _rest(at, data))
    largest = _narrowed(at, _scattered(at, start, segments, _widened(at, data), "max"))
    fills = {"zero": 0.0, "lowest": _lowest(at.dtype(0))}
    empty = at.like(at.one_of("fill_mode", "zero", fills))
    largest = at.emit("Where", _are_empty(at, segments, room, at.rank(0)), empty, largest)
    return at.emit("Slice", largest, at.const([0], np.int64), count)


def _bags(at: Site, bags: ir.Value, count: ir.Value, default: int) -> ir.Value:
    """The rows of each bag added up; the input behind that of empty bags has their weights."""
    table, inner = at.inputs[0], at.rank(0) - 1
    rows = at.emit("Gather", table, at.indices(1))
    if at.has(default + 1):
        rows = at.emit("Mul", rows, _behind(at, at.inputs[default + 1], inner))
    zero = at.const(0, np.float32) if _is_half(at) else at.like(0)
    start = _filled(at, zero, count, _rest(at, table))
    joined = _narrowed(at, _scattered(at, start, bags, _widened(at, rows)))
    if _is_mean(at):
        ones = _filled(at, at.const(1, np.int64), at.size(bags, 0))
        number = _scattered(at, _filled(at, at.const(0, np.int64), count), bags, ones)
        number = at.emit("CastLike", at.emit("Max", number, at.const(1, np.int64)), table)
        joined = at.emit("Div", joined, _behind(at, number, inner))
    if not at.has(default):
        return joined
    row, first = at.indices(default), at.const(0, np.int64)
    filling = at.emit("Gather", table, at.emit("Max", row, first))
    filling = at.emit("Where", at.emit("Less", row, first), at.like(0), filling)
    return at.emit("Where", _are_empty(at, bags, count, inner + 1), filling, joined)


def _is_half(at: Site) -> bool:
    """Whether elements are of 16 bits, which are joined as float32: so devices take them."""
    return at.dtype(0).itemsize == 2 and at.dtype(0).kind not in "iu"


def _widened(at: Site, rows: ir.Value) -> ir.Value:
    return at.emit("Cast", rows, to=1) if _is_half(at) else rows


def _narrowed(at: Site, joined: ir.Value) -> ir.Value:
    return at.emit("CastLike", joined, at.inputs[0]) if _is_half(at) else joined


def _is_mean(at: Site) -> bool:
    return bool(at.one_of("reduction", "sum", {"sum": False, "mean": True}))


def _are_empty(at: Site, segments: ir.Value, count: ir.Value, rank: int) -> ir.Value:
    """Whether each of so many segments has no row, with as many dimensions as rows have."""
    ones = _filled(at, at.const(1, np.int64), at.size(segments, 0))
    number = _scattered(at, _filled(at, at.const(0, np.int64), count), segments, ones)
    return _behind(at, at.emit("Equal", number, at.const(0, np.int64)), rank - 1)


def _scattered(
    at: Site, start: ir.Value, places: ir.Value, rows: ir.Value, how: str = "add"
) -> ir.Value:
    column = at.emit("Unsqueeze", places, at.const([-1], np.int64))
    return at.emit("ScatterND", start, column, rows, reduction=how)


def _filled(at: Site, number: ir.Value, *sizes: ir.Value) -> ir.Value:
    """A tensor of one number everywhere."""
    shape = sizes[0] if len(sizes) == 1 else at.emit("Concat", *sizes, axis=0)
    return at.emit("Expand", number, shape)


def _rest(at: Site, value: ir.Value) -> ir.Value:
    """All sizes but the first."""
    return at.emit("Shape", value, start=1)


def _behind(at: Site, value: ir.Value, count: int) -> ir.Value:
    """A value with so many axes of size 1 behind its own."""
    if not count:
        return value
    return at.emit("Unsqueeze", value, at.const([-1 - place for place in range(count)], np.int64))


def _lowest(number: np.dtype[Any]) -> float:
    if number.kind in "iu":
        return int(np.iinfo(number).min)
    return float(np.finfo(number).min)
