"""Operators that pick, place and order elements: Gather, Scatter, TopK, NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.openvino_ir.writer.document import Output
from partita.frontends.openvino_ir.writer.writing_context import Site, writes

if TYPE_CHECKING:
    import onnx_ir as ir

_REDUCTIONS = {"none": "none", "add": "sum", "mul": "prod", "min": "min", "max": "max"}


@writes("Gather")
def gather(at: Site) -> Output:
    """Elements by index along an axis."""
    axis = at.const(at.integer("axis"), np.int64)
    return at.emit("Gather", at.read(0), at.read(1), axis, version="opset8", batch_dims=0)


@writes("GatherElements")
def gather_elements(at: Site) -> Output:
    """One element per index, along an axis."""
    axis = at.integer("axis")
    return at.emit("GatherElements", at.read(0), at.read(1), version="opset6", axis=axis)


@writes("GatherND")
def gather_nd(at: Site) -> Output:
    """Slices by tuples of indices."""
    batch = at.integer("batch_dims")
    return at.emit("GatherND", at.read(0), at.read(1), version="opset8", batch_dims=batch)


@writes("ScatterElements")
def scatter_elements(at: Site) -> Output:
    """One element per index written, along an axis."""
    inputs = (at.read(index) for index in range(3))
    return at.emit(
        "ScatterElementsUpdate", *inputs, at.const(at.integer("axis"), np.int64), version="opset12",
        reduction=_REDUCTIONS[at.text("reduction", "none")], use_init_val=True,
    )  # fmt: skip


@writes("ScatterND")
def scatter_nd(at: Site) -> Output:
    """Slices written by tuples of indices."""
    inputs = (at.read(index) for index in range(3))
    reduction = _REDUCTIONS[at.text("reduction", "none")]
    if reduction == "none":
        return at.emit("ScatterNDUpdate", *inputs, version="opset4")
    return at.emit("ScatterNDUpdate", *inputs, version="opset15", reduction=reduction)


@writes("OneHot")
def one_hot(at: Site) -> Output:
    """One of many on."""
    places, depth, values = (at.read(index) for index in range(3))
    if depth.rank:
        depth = at.reshape(depth, [])
    depth = at.convert(depth, _int64())
    dims = (values.dtype, ())
    axis = at.const(0, np.int64)
    off, on = (
        at.emit("Gather", values, at.const(index, np.int64), axis, version="opset8", made=dims,
                batch_dims=0)
        for index in range(2)
    )  # fmt: skip
    if not places.dtype.is_integer():
        raise at.error("indices that are not whole numbers")
    return at.emit(
        "OneHot", places, depth, on, off, version="opset16",
        axis=at.integer("axis", -1), negative_indices_mode="normalize",
    )  # fmt: skip


@writes("NonZero")
def non_zero(at: Site) -> Output:
    """Where elements differ from zero."""
    return at.emit("NonZero", at.read(0), version="opset3", output_type="i64")


@writes("CumSum")
def cumulative_sum(at: Site) -> Output:
    """Running sums along an axis."""
    axis = at.read(1)
    if axis.rank:
        axis = at.reshape(axis, [])
    flags: dict[str, Any] = {key: bool(at.integer(key)) for key in ("exclusive", "reverse")}
    return at.emit("CumSum", at.read(0), axis, version="opset3", **flags)


@writes("TopK")
def top_k(at: Site) -> Sequence[Output]:
    """The largest or smallest along an axis, and their places."""
    count = at.read(1)
    if count.rank:
        count = at.reshape(count, [])
    return at.emit_many(
        "TopK", [at.result(0), at.result(1)], at.read(0), count, version="opset11",
        axis=at.integer("axis", -1),
        mode="max" if at.integer("largest", 1) else "min",
        sort="value",
        index_element_type="i64",
        stable=True,
    )  # fmt: skip


@writes("Unique")
def unique(at: Site) -> Sequence[Output]:
    """Different elements or slices, where each stood first, which each is, and how many."""
    axis = at.node.attributes.get("axis")
    inputs = [] if axis is None else [at.const(axis.as_int(), np.int64)]
    made = [at.result(0)]
    made += [
        at.result(place) if place < len(at.node.outputs) else (_int64(), (-1,))
        for place in (1, 2, 3)
    ]
    return at.emit_many(
        "Unique", made, at.read(0), *inputs, version="opset10",
        sorted=bool(at.integer("sorted", 1)), index_element_type="i64", count_element_type="i64",
    )  # fmt: skip


def _int64() -> ir.DataType:
    import onnx_ir as ir

    return ir.DataType.INT64


@writes("NonMaxSuppression")
def non_max_suppression(at: Site) -> Output:
    """Boxes that do not overlap better ones: their indices."""
    scores = at.read(1)
    defaults = (2, np.int64), (3, np.float32), (4, np.float32)
    limits = []
    for index, dtype in defaults:
        limit = at.read(index) if at.has(index) else at.const(0, dtype)
        limits.append(at.reshape(limit, []) if limit.rank else limit)
    if not at.has(4):  # then no score is too low
        limits[2] = at.const(np.finfo(np.float32).min, np.float32)
    made = [at.result(), (scores.dtype, (-1, 3)), (_int64(), (1,))]
    encoding = "center" if at.integer("center_point_box") else "corner"
    return at.emit_many(
        "NonMaxSuppression", made, at.read(0), scores, *limits, version="opset9",
        box_encoding=encoding, sort_result_descending=False, output_type="i64",
    )[0]  # fmt: skip
