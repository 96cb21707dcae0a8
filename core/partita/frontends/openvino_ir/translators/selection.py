"""Layers that pick, place and order elements: Gather, Scatter, TopK, NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates
from partita.frontends.operation_site import FULL

if TYPE_CHECKING:
    import onnx_ir as ir

_REDUCTIONS = {"none": "none", "sum": "add", "prod": "mul", "min": "min", "max": "max"}


@translates("Gather")
def gather(at: Site) -> ir.Value:
    """Elements by index along an axis; leading batch dimensions go side by side."""
    x, places = at.inputs[0], at.indices(1)
    axis = int(at.known(2).reshape(())) % max(at.rank(0), 1) if at.has(2) else 0
    batch = at.integer("batch_dims", 0)
    batch += at.rank(1) if batch < 0 else 0
    if not batch:
        return at.emit("Gather", x, places, axis=axis)
    if axis < batch:
        raise at.error(f"axis {axis} is one of {batch} batch dimensions")
    last, rank = at.emit("Unsqueeze", places, at.const([-1], np.int64)), at.rank(0)
    between = range(batch, axis)
    order = [*range(batch), axis, *between, *range(axis + 1, rank)]
    front = at.emit("Transpose", x, perm=order) if between else x
    found = at.emit("GatherND", front, last, batch_dims=batch)
    if not between:
        return found
    picked, skipped = at.rank(1) - batch, axis - batch  # picked axes go behind those skipped
    ends = [batch, batch + picked, batch + picked + skipped, rank + picked - 1]
    head, those, over, rest = (range(a, b) for a, b in zip([0, *ends], ends, strict=False))
    return at.emit("Transpose", found, perm=[*head, *over, *those, *rest])


@translates("GatherElements")
def gather_elements(at: Site) -> ir.Value:
    """One element per index, along an axis."""
    return at.emit("GatherElements", at.inputs[0], at.indices(1), axis=at.integer("axis"))


@translates("GatherND")
def gather_nd(at: Site) -> ir.Value:
    """Slices by tuples of indices; operation set 5 joins the batch dimensions of the result."""
    batch = at.integer("batch_dims", 0)
    found = at.emit("GatherND", at.inputs[0], at.indices(1), batch_dims=batch)
    if at.layer.version != "opset5" or batch < 2:
        return found
    rest = at.emit("Shape", found, start=batch)
    return at.emit("Reshape", found, at.emit("Concat", at.const([-1], np.int64), rest, axis=0))


@translates("ScatterElementsUpdate")
def scatter_elements(at: Site) -> ir.Value:
    """One element per index written, along an axis."""
    reduction = at.one_of("reduction", "none", _REDUCTIONS | {"mean": "mean"})
    x, _, updates = at.inputs[:3]
    places, axis = at.indices(1), int(at.known(3).reshape(()))
    mean = reduction == "mean"
    if mean and at.is_integer:
        raise at.error("means of whole numbers are not read")
    if reduction != "none" and not at.flag("use_init_val", True):
        neutral = at.like(_neutral(reduction, at.dtype(0)))
        first = at.emit("CastLike", at.emit("Expand", neutral, at.emit("Shape", updates)), x)
        x = at.emit("ScatterElements", x, places, first, axis=axis)
    found = at.emit(
        "ScatterElements", x, places, updates, axis=axis, reduction="add" if mean else reduction
    )
    if not mean:
        return found
    ones = at.emit("Expand", at.like(1), at.emit("Shape", updates))
    counted = int(at.flag("use_init_val", True))
    start = at.emit("Expand", at.like(counted), at.emit("Shape", x))
    count = at.emit("ScatterElements", start, places, ones, axis=axis, reduction="add")
    return at.emit("Div", found, at.emit("Max", count, at.like(1)))


def _neutral(reduction: str, dtype: np.dtype[Any]) -> float:
    """What a reduction starts from without a value."""
    if reduction in ("add", "mean", "mul"):
        return float(reduction == "mul")
    if dtype.kind not in "iu":
        return np.inf if reduction == "min" else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if reduction == "min" else limits.min


@translates("ScatterNDUpdate")
def scatter_nd(at: Site) -> ir.Value:
    """Slices written by tuples of indices."""
    x, _, updates = at.inputs
    reduction = at.one_of("reduction", "none", _REDUCTIONS | {"sub": "sub"})
    if reduction == "sub":
        reduction, updates = "add", at.emit("Neg", updates)
    return at.emit("ScatterND", x, at.indices(1), updates, reduction=reduction)


@translates("ScatterUpdate")
def scatter(at: Site) -> ir.Value:
    """Slices of one axis written; indices of any rank stand for as many slices."""
    x, _, updates, _ = at.inputs
    axis = int(at.known(3).reshape(())) % max(at.rank(0), 1)
    given, row = at.indices(1), at.const([-1], np.int64)
    if at.rank(1) != 1:
        rest = [at.emit("Shape", x, start=0, end=axis), row, at.emit("Shape", x, start=axis + 1)]
        updates = at.emit("Reshape", updates, at.emit("Concat", *rest, axis=0))
        given = at.emit("Reshape", given, row)
    places = at.emit("Unsqueeze", given, row)
    if not axis:
        return at.emit("ScatterND", x, places, updates)
    order = [axis, *(i for i in range(at.rank(0)) if i != axis)]
    moved = (at.emit("Transpose", value, perm=order) for value in (x, updates))
    front, fresh = moved
    written = at.emit("ScatterND", front, places, fresh)
    return at.emit("Transpose", written, perm=[int(i) for i in np.argsort(order)])


@translates("SliceScatter")
def slice_scatter(at: Site) -> ir.Value:
    """A slice written: into the places that it would be read from."""
    x, updates = at.inputs[:2]
    start, stop, step = (at.row(index) for index in (2, 3, 4))
    axes = at.row(5) if at.has(5) else at.const(range(at.dims(2)[0]), np.int64)
    shape, row, zero = at.emit("Shape", x), at.const([-1], np.int64), at.const(0, np.int64)
    count = at.emit("ReduceProd", shape, keepdims=0)
    all_places = at.emit("Range", zero, count, at.const(1, np.int64))
    inside = at.emit("Slice", at.emit("Reshape", all_places, shape), start, stop, axes, step)
    places = at.emit("Reshape", inside, at.const([-1, 1], np.int64))
    flat = (at.emit("Reshape", value, row) for value in (x, updates))
    before, written = flat
    return at.emit("Reshape", at.emit("ScatterND", before, places, written), shape)


@translates("Bucketize", "SearchSorted")
def search(at: Site) -> ir.Value:
    """How many of sorted bounds lie below each element, or below and at it."""
    if at.layer.type == "Bucketize":
        x, bounds, at_bound = *at.inputs, not at.flag("with_right_bound", True)
        bounds = at.emit("CastLike", bounds, x)
    else:
        bounds, x, at_bound = *at.inputs, at.flag("right_mode")
        bounds = (
            at.emit("Unsqueeze", bounds, at.const([-2], np.int64)) if at.rank(0) > 1 else bounds
        )
    column = at.emit("Unsqueeze", x, at.const([-1], np.int64))
    below = at.emit("LessOrEqual" if at_bound else "Less", bounds, column)
    counted = at.emit("Cast", below, to=7)
    count = at.emit("ReduceSum", counted, at.const([-1], np.int64), keepdims=0)
    return at.as_indices(count, "output_type")


@translates("OneHot")
def one_hot(at: Site) -> ir.Value:
    """One-hot; an index out of range, or a negative one unless it counts back, leaves all off."""
    places, depth = at.indices(0), at.indices(1)
    modes = {"ignore_negative": True, "normalize": False}
    if at.one_of("negative_indices_mode", "ignore_negative", modes):
        negative = at.emit("Less", places, at.const(0, np.int64))
        places = at.emit("Where", negative, depth, places)
    first = at.const([0], np.int64)
    values = [at.emit("Unsqueeze", at.inputs[index], first) for index in (3, 2)]
    both = at.emit("Concat", *values, axis=0)
    if at.rank(0):
        return at.emit("OneHot", places, depth, both, axis=at.integer("axis", -1))
    row = at.emit("OneHot", at.emit("Unsqueeze", places, first), depth, both)  # ONNX has no scalars
    return at.emit("Squeeze", row, first)


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
    largest = int(at.one_of("mode", "max", {"max": True, "min": False}))
    count, axis = at.row(1), at.integer("axis")
    values, places = at.emit_many("TopK", 2, at.inputs[0], count, axis=axis, largest=largest)
    if at.text("sort", "value") == "index":
        places, order = at.emit_many("TopK", 2, places, count, axis=axis, largest=0)
        values = at.emit("GatherElements", values, order, axis=axis)
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
