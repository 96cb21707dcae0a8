"""Layers that pick, place and order elements: Gather, Scatter, TopK, NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.openvino_ir.translator import FULL, Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir

_REDUCTIONS = {"none": "none", "sum": "add", "prod": "mul", "min": "min", "max": "max"}


@translates("Gather")
def gather(at: Site) -> ir.Value:
    """Elements by index along an axis; leading batch dimensions go side by side."""
    x, places = at.inputs[0], at.indices(1)
    axis = int(at.known(2).reshape(())) % max(at.rank(0), 1) if at.has(2) else 0
    batch = at.whole("batch_dims", 0)
    batch += at.rank(1) if batch < 0 else 0
    if not batch:
        return at.emit("Gather", x, places, axis=axis)
    if axis != batch:
        raise at.error(f"axis {axis} behind {batch} batch dimensions is not read")
    last = at.emit("Unsqueeze", places, at.const([-1], np.int64))
    return at.emit("GatherND", x, last, batch_dims=batch)


@translates("GatherElements")
def gather_elements(at: Site) -> ir.Value:
    """One element per index, along an axis."""
    return at.emit("GatherElements", at.inputs[0], at.indices(1), axis=at.whole("axis"))


@translates("GatherND")
def gather_nd(at: Site) -> ir.Value:
    """Slices by tuples of indices; operation set 5 joins the batch dimensions of the result."""
    batch = at.whole("batch_dims", 0)
    if at.layer.version == "opset5" and batch > 1:
        raise at.error("operation set 5 with several batch dimensions is not read")
    return at.emit("GatherND", at.inputs[0], at.indices(1), batch_dims=batch)


@translates("ScatterElementsUpdate")
def scatter_elements(at: Site) -> ir.Value:
    """One element per index written, along an axis."""
    reduction = at.one_of("reduction", "none", _REDUCTIONS)
    if reduction != "none" and not at.flag("use_init_val", True):
        raise at.error("use_init_val 'false' is not read")
    x, _, updates = at.inputs[:3]
    axis = int(at.known(3).reshape(()))
    return at.emit("ScatterElements", x, at.indices(1), updates, axis=axis, reduction=reduction)


@translates("ScatterNDUpdate")
def scatter_nd(at: Site) -> ir.Value:
    """Slices written by tuples of indices."""
    x, _, updates = at.inputs
    reduction = at.one_of("reduction", "none", _REDUCTIONS)
    return at.emit("ScatterND", x, at.indices(1), updates, reduction=reduction)


@translates("ScatterUpdate")
def scatter(at: Site) -> ir.Value:
    """Slices of one axis written; read where the indices have one dimension."""
    x, _, updates, _ = at.inputs
    axis = int(at.known(3).reshape(())) % max(at.rank(0), 1)
    if at.rank(1) != 1:
        raise at.error("indices of more or less than one dimension are not read")
    places = at.emit("Unsqueeze", at.indices(1), at.const([-1], np.int64))
    if not axis:
        return at.emit("ScatterND", x, places, updates)
    order = [axis, *(i for i in range(at.rank(0)) if i != axis)]
    moved = (at.emit("Transpose", value, perm=order) for value in (x, updates))
    front, fresh = moved
    written = at.emit("ScatterND", front, places, fresh)
    return at.emit("Transpose", written, perm=[int(i) for i in np.argsort(order)])


@translates("OneHot")
def one_hot(at: Site) -> ir.Value:
    """One of many on; an index out of range, and a negative one if so told, leaves all off."""
    places, depth = at.indices(0), at.indices(1)
    modes = {"ignore_negative": True, "normalize": False}
    if at.one_of("negative_indices_mode", "ignore_negative", modes):
        negative = at.emit("Less", places, at.const(0, np.int64))
        places = at.emit("Where", negative, depth, places)
    first = at.const([0], np.int64)
    values = [at.emit("Unsqueeze", at.inputs[index], first) for index in (3, 2)]
    both = at.emit("Concat", *values, axis=0)
    return at.emit("OneHot", places, depth, both, axis=at.whole("axis", -1))


@translates("Unique")
def unique(at: Site) -> Sequence[ir.Value]:
    """Different elements or slices, where each stood first, which each is, and how many."""
    axis = int(at.known(1).reshape(())) if at.has(1) else None
    order = int(at.flag("sorted", True))
    values, *rest = at.emit_many("Unique", 4, at.inputs[0], axis=axis, sorted=order)
    first, inverse, counts = rest
    return [
        values,
        at.as_indices(first, "index_element_type"),
        at.as_indices(inverse, "index_element_type"),
        at.as_indices(counts, "count_element_type"),
    ]


@translates("NonZero")
def non_zero(at: Site) -> ir.Value:
    """Where elements differ from zero."""
    return at.as_indices(at.emit("NonZero", at.inputs[0]), "output_type")


@translates("CumSum")
def cumulative_sum(at: Site) -> ir.Value:
    """Running sums along an axis."""
    flags = {key: int(at.flag(key)) for key in ("exclusive", "reverse")}
    return at.emit("CumSum", at.inputs[0], at.indices(1), **flags)


@translates("TopK")
def top_k(at: Site) -> Sequence[ir.Value]:
    """The largest or smallest along an axis, and their places."""
    if at.text("sort", "value") == "index":
        raise at.error("the order by index is not read")
    largest = int(at.one_of("mode", "max", {"max": True, "min": False}))
    values, places = at.emit_many(
        "TopK", 2, at.inputs[0], at.row(1), axis=at.whole("axis"), largest=largest
    )
    return [values, at.as_indices(places, "index_element_type")]


@translates("NonMaxSuppression")
def non_max_suppression(at: Site) -> Sequence[ir.Value]:
    """Boxes that do not overlap better ones: their indices, scores and number."""
    boxes, scores = at.inputs[:2]
    if at.has(5) and np.any(at.known(5)):
        raise at.error("soft_nms_sigma other than 0 is not read")
    row = at.const([1], np.int64)
    limits = [at.row(2) if at.has(2) else None]
    limits += [at.emit("Reshape", at.inputs[i], row) if at.has(i) else None for i in (3, 4)]
    encoding = at.one_of("box_encoding", "corner", {"corner": 0, "center": 1})
    chosen = at.emit("NonMaxSuppression", boxes, scores, *limits, center_point_box=encoding)
    places = _of_scores(at, chosen)
    if at.flag("sort_result_descending", True):
        found = at.emit("GatherND", scores, places)
        _, order = at.emit_many("TopK", 2, found, at.size(chosen, 0), axis=0)
        chosen = at.emit("Gather", chosen, order, axis=0)
        places = _of_scores(at, chosen)
    outputs = [at.as_indices(chosen, "output_type")]
    if at.read(1):
        found = at.emit("Unsqueeze", at.emit("GatherND", scores, places), row)
        columns = at.emit("Slice", chosen, *(at.const([n], np.int64) for n in (0, 2, 1)))
        labels = at.emit("CastLike", columns, scores)
        outputs.append(at.emit("Concat", labels, found, axis=1))
    else:
        outputs.append(outputs[0])  # nobody reads it
    if at.read(2):
        outputs.append(at.as_indices(at.size(chosen, 0), "output_type"))
    return outputs


def _of_scores(at: Site, chosen: ir.Value) -> ir.Value:
    """Indices into the scores, which have (batch, class, box) as the chosen have."""
    return at.emit("Slice", chosen, *(at.const([n], np.int64) for n in (0, FULL, 1)))
