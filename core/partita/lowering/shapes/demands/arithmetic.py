"""Demands of Gemm, PRelu, and of positions of the largest and the smallest elements."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.geometry.broadcasting import is_repeated_to
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import Demand, Shapes, first_of, pair_of

ARITHMETIC_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, ARITHMETIC_DEMANDS)


@_demand("ArgMax", "ArgMin")
def _argument(node: Node, shapes: Shapes) -> Iterable[str]:
    x, axis = first_of(shapes), node.attrs.get("axis", 0)
    if -len(x) <= axis < len(x) and x[axis] == 0 and x.count(0) == 1:
        yield f"axis {axis} holds no element"


@_demand("PRelu")
def _prelu(node: Node, shapes: Shapes) -> Iterable[str]:
    x, slope = pair_of(shapes)
    fits = all(map(is_repeated_to, slope[::-1], x[::-1]))
    if len(slope) > len(x) or not fits:
        yield "the slope is to broadcast to the first input, which keeps its shape"


@_demand("Gemm", "com.microsoft::FusedGemm")
def _gemm(node: Node, shapes: Shapes) -> Iterable[str]:
    for shape in pair_of(shapes):
        if len(shape) != 2:
            yield "the factors are to have 2 dimensions"
