"""Demands of operators that move, pick and place elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import (
    Demand,
    Shapes,
    first_of,
    holds,
    is_of_shape,
    pair_of,
)

MOVEMENT_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, MOVEMENT_DEMANDS)


@_demand("Transpose", "partita::Transpose")
def _transpose(node: Node, shapes: Shapes) -> Iterable[str]:
    order, rank = node.attrs.get("perm"), len(first_of(shapes))
    if order is not None and sorted(order) != list(range(rank)):
        yield f"perm {list(order)} is not a permutation of {rank} dimensions"


@_demand("Flatten")
def _flatten(node: Node, shapes: Shapes) -> Iterable[str]:
    axis, rank = node.attrs.get("axis", 1), len(first_of(shapes))
    if not -rank <= axis <= rank:
        yield f"axis {axis} is out of range for {rank} dimensions"


@_demand("Tile")
def _tile(node: Node, shapes: Shapes) -> Iterable[str]:
    if node.version >= 6:
        yield from is_of_shape("repeats", shapes[1], (len(first_of(shapes)),))


@_demand("Trilu")
def _trilu(node: Node, shapes: Shapes) -> Iterable[str]:
    if len(first_of(shapes)) < 2:
        yield "the input is to have 2 dimensions or more"


@_demand("Concat", "com.microsoft::QLinearConcat")
def _concat(node: Node, shapes: Shapes) -> Iterable[str]:
    # The quantized form has its scale and zero point in front, and those of each input behind it.
    wanted = shapes if node.op_type == "Concat" else shapes[2::3]
    if node.op_type != "Concat":
        for shape in (*shapes[:2], *shapes[3::3], *shapes[4::3]):
            yield from holds("a scale or zero point", shape, 1)
    given = [shape for shape in wanted if shape is not None]
    rank = max(map(len, given))
    axis = node.attrs.get("axis", 1)
    # Files of old exporters hold empty 1-D tensors that stand for "nothing yet".
    whole = [shape for shape in given if len(shape) == rank or shape != (0,)]
    if -rank <= axis < rank:
        others = [(len(s), *s[: axis % rank], *s[axis % rank + 1 :]) for s in whole]
        if any(other != others[0] for other in others):
            yield f"all dimensions but {axis} are to be the same"


@_demand("Pad")
def _pad(node: Node, shapes: Shapes) -> Iterable[str]:
    if len(shapes) > 1:  # an attribute, before opset 11
        axes = shapes[3] if len(shapes) > 3 else None
        count = len(first_of(shapes)) if axes is None else math.prod(axes)
        yield from holds("pads", shapes[1], 2 * count)


@_demand("Split")
def _split(node: Node, shapes: Shapes) -> Iterable[str]:
    count = node.attrs.get("num_outputs", len(node.outputs))
    if count != len(node.outputs):
        yield f"num_outputs is {count}, but it has {len(node.outputs)}"


@_demand("GatherElements", "Scatter", "ScatterElements")
def _elements(node: Node, shapes: Shapes) -> Iterable[str]:
    x, index = pair_of(shapes)
    axis = node.attrs.get("axis", 0)
    if len(x) != len(index):
        yield "data and indices are to have as many dimensions"
    elif any(
        n > limit
        for k, (n, limit) in enumerate(zip(index, x, strict=True))
        if k != axis % max(len(x), 1)
    ):
        yield f"indices may be larger than data along axis {axis} only"
    yield from is_of_shape("updates", shapes[2], index)


@_demand("GatherND")
def _gather_nd(node: Node, shapes: Shapes) -> Iterable[str]:
    x, index = pair_of(shapes)
    batch = node.attrs.get("batch_dims", 0)
    if not 0 <= batch < min(len(x), len(index)) or x[:batch] != index[:batch]:
        yield f"data and indices are to share {batch} leading dimensions and have more"
    elif batch + index[-1] > len(x):
        yield f"data has no {index[-1]} dimensions behind {batch}"


@_demand("ScatterND")
def _scatter_nd(node: Node, shapes: Shapes) -> Iterable[str]:
    x, index = pair_of(shapes)
    if index[-1] > len(x):
        yield f"data has no {index[-1]} dimensions"
    yield from is_of_shape("updates", shapes[2], (*index[:-1], *x[index[-1] :]))


@_demand("ReverseSequence")
def _reverse_sequence(node: Node, shapes: Shapes) -> Iterable[str]:
    x, axes = first_of(shapes), (node.attrs.get("time_axis", 0), node.attrs.get("batch_axis", 1))
    if axes not in ((0, 1), (1, 0)) or len(x) < 2:
        yield "time_axis and batch_axis are to be 0 and 1"
    else:
        yield from is_of_shape("sequence_lens", shapes[1], (x[axes[1]],))


@_demand("OneHot")
def _one_hot(node: Node, shapes: Shapes) -> Iterable[str]:
    if shapes[0] == ():
        yield "indices are to have a dimension"
    yield from holds("depth", shapes[1], 1)
    if shapes[2] is not None and tuple(shapes[2]) != (2,):
        yield "values is to be a row of 2 elements"
