"""Demands of operators on boxes and regions of images."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import (
    Demand,
    Shapes,
    holds,
    is_of_shape,
    pair_of,
)

IMAGE_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, IMAGE_DEMANDS)


@_demand("NonMaxSuppression")
def _non_max_suppression(node: Node, shapes: Shapes) -> Iterable[str]:
    boxes, scores = pair_of(shapes)
    if len(scores) != 3:
        yield "scores is to have 3 dimensions"
    yield from is_of_shape("boxes", boxes, (scores[0], scores[2], 4))
    for position, name in enumerate(("the most boxes", "the overlap", "the score"), 2):
        yield from holds(name, shapes[position], 1)


@_demand("RoiAlign", "MaxRoiPool")
def _regions(node: Node, shapes: Shapes) -> Iterable[str]:
    x, regions = pair_of(shapes)
    if len(x) != 4:
        yield "the input is to have 4 dimensions"
    yield from is_of_shape("rois", regions, (regions[0], 4 if node.op_type == "RoiAlign" else 5))
    yield from is_of_shape("batch_indices", shapes[2], (regions[0],))


@_demand("GridSample")
def _grid_sample(node: Node, shapes: Shapes) -> Iterable[str]:
    x, grid = pair_of(shapes)
    if len(x) != len(grid) or x[0] != grid[0]:
        yield "input and grid are to have as many dimensions and images"
