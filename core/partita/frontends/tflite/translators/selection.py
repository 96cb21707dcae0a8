"""Operators that pick elements: the largest, those that are true, boxes that do not overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.tflite.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("TOPK_V2")
def top_k(at: Site) -> list[ir.Value]:
    """The largest along the last axis, in order, and their places."""
    count = at.reshaped(at.indices(1), [1])
    values, places = at.emit_many("TopK", 2, at.value(0), count, axis=-1, largest=1, sorted=1)
    return [values, at.cast(places, 6)]


@translates("WHERE")
def where(at: Site) -> ir.Value:
    """The places of what is not zero, a row for each."""
    found = at.emit("NonZero", at.value(0))
    return at.emit("Transpose", found, perm=[1, 0])


@translates("ONE_HOT")
def one_hot(at: Site) -> ir.Value:
    """One of two numbers for each place of a new axis: whether the index names it.

    An index below zero names none, where ONNX would count from the end.
    """
    indices, depth = at.indices(0), at.reshaped(at.indices(1), [1])
    beyond = at.emit("Less", indices, at.const(0, np.int64))
    indices = at.emit("Where", beyond, at.const(1 << 40, np.int64), indices)
    pair = [at.reshaped(at.value(index), [1]) for index in (3, 2)]
    values = at.emit("Concat", *pair, axis=0)
    if at.rank(0):
        return at.emit("OneHot", indices, depth, values, axis=at.integer("Axis", -1))
    row = at.emit("OneHot", at.reshaped(indices, [1]), depth, values)  # ONNX has no scalars
    return at.emit("Squeeze", row, at.const([0], np.int64))


@translates("UNIQUE")
def unique(at: Site) -> list[ir.Value]:
    """Each number once, in order of appearance, and which of them stands at each place."""
    values, _, places, _ = at.emit_many("Unique", 4, at.value(0), sorted=0)
    return [values, at.cast(places, 7 if at.dtype(at.target(1)) == np.int64 else 6)]


@translates("NON_MAX_SUPPRESSION_V4")
def non_max_suppression(at: Site) -> list[ir.Value]:
    """Places of boxes that overlap no better one too much, filled with zeros; and their count."""
    boxes = at.emit("Unsqueeze", at.value(0), at.const([0], np.int64))
    scores = at.emit("Unsqueeze", at.value(1), at.const([0, 1], np.int64))
    most = at.reshaped(at.indices(2), [1])
    limits = [at.reshaped(at.value(index), [1]) for index in (3, 4)]
    rows = at.emit("NonMaxSuppression", boxes, scores, most, *limits)
    places = at.emit("Gather", rows, at.const(2, np.int64), axis=1)
    count = at.emit("Shape", places)
    gap = at.emit("Sub", most, count)
    pads = at.emit("Concat", at.const([0], np.int64), gap, axis=0)
    filled = at.emit("Pad", places, pads)
    return [at.cast(filled, 6), at.cast(at.reshaped(count, []), 6)]


@translates("SEGMENT_SUM")
def segment_sum(at: Site) -> ir.Value:
    """Sums of rows with the same number; numbers count up from zero."""
    numbers = at.indices(1)
    last = at.emit("Slice", numbers, *(at.const([end], np.int64) for end in (-1, 1 << 40)))
    count = at.emit("Add", last, at.const([1], np.int64))
    return _segments(at, numbers, count, "add", 0)


@translates(
    "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN"
)
def unsorted_segments(at: Site) -> ir.Value:
    """Rows with the same number put together, in as many results as the third input says."""
    limits = _limits(at.dtype(at.target()))
    kinds = {
        "SUM": ("add", 0),
        "PROD": ("mul", 1),
        "MAX": ("max", limits[0]),
        "MIN": ("min", limits[1]),
    }
    kind, first = kinds[at.operator.code.rpartition("_")[2]]
    return _segments(at, at.indices(1), at.reshaped(at.indices(2), [1]), kind, first)


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The lowest and highest number of a type."""
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _segments(at: Site, numbers: ir.Value, count: ir.Value, kind: str, first: float) -> ir.Value:
    if at.rank(1) != 1:
        raise at.error(f"numbers of rows have shape {list(at.dims(1))}; expected one size")
    one, zero = at.const([1], np.int64), at.const([0], np.int64)
    known = at.constant(1)
    dropping = known is None or bool(np.any(known < 0))
    rows = count
    if dropping:  # rows of negative numbers go into one more result, which nobody gets
        rows = at.emit("Add", count, one)
        numbers = at.emit("Where", at.emit("Less", numbers, zero), count, numbers)
    shape = rows
    if at.rank(0) > 1:
        shape = at.emit("Concat", rows, at.emit("Shape", at.value(0), start=1), axis=0)
    empty = at.emit("Expand", at.const(first, at.dtype(at.target())), shape)
    places = at.emit("Unsqueeze", numbers, one)
    found = at.emit("ScatterND", empty, places, at.value(0), reduction=kind)
    return at.emit("Slice", found, zero, count, zero) if dropping else found


@translates("SPARSE_TO_DENSE")
def sparse_to_dense(at: Site) -> ir.Value:
    """Numbers put to places of a tensor that holds another number elsewhere."""
    rank = at.rank(0)
    if rank not in (1, 2):
        raise at.error(f"places have shape {list(at.dims(0))}; expected one or two sizes")
    places = at.indices(0)
    if rank == 1:
        places = at.emit("Unsqueeze", places, at.const([1], np.int64))
    empty = at.emit("Expand", at.reshaped(at.value(3), []), at.indices(1))
    count = at.emit("Shape", places, start=0, end=1)
    return at.emit("ScatterND", empty, places, at.emit("Expand", at.value(2), count))


@translates("MATRIX_DIAG")
def matrix_diag(at: Site) -> ir.Value:
    """Matrices with given numbers from corner to corner, and zeros elsewhere."""
    size = at.dims(0)[-1]
    if not 0 <= size <= 1 << 12:
        raise at.error(f"a diagonal of {size} numbers is not read")
    rows = at.emit("Unsqueeze", at.value(0), at.const([-1], np.int64))
    zero = at.const(0, at.dtype(at.tensor(0)))
    place = np.arange(size)
    is_diagonal = at.emit("Equal", at.const(place[:, None]), at.const(place))
    return at.emit("Where", is_diagonal, rows, zero)
