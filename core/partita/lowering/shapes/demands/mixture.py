"""Demands of mixtures of experts."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import Demand, Shape, Shapes, is_of_shape
from partita.lowering.shapes.mixture_layers import Layer, layers_of

MIXTURE_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, MIXTURE_DEMANDS)


@_demand("com.microsoft::MoE", "com.microsoft::QMoE")
def _mixture(node: Node, shapes: Shapes) -> Iterable[str]:
    x, router = shapes[0], shapes[1]
    if x is None or len(x) < 2 or router is None or len(router) != 2:
        yield "input is to have 2 dimensions at least, router_probs 2"
        return
    tokens, hidden = math.prod(x[:-1]), x[-1]
    yield from is_of_shape("router_probs", router, (tokens, router[1]))
    yield from is_of_shape("router_weights", shapes[14], (tokens, router[1]))
    if not 1 <= node.attrs.get("k", 1) <= router[1]:
        yield f"of {router[1]} experts {node.attrs.get('k', 1)} cannot be chosen"
    first, second, third = layers_of(node)
    wide = shapes[first.w]
    if wide is None or len(wide) != 3:
        yield "fc1_experts_weights is to have 3 dimensions"
        return
    columns = wide[1]
    fused = node.attrs.get("activation_type", "relu") == "swiglu" and shapes[third.w] is None
    if fused and columns % 2:
        yield f"{columns} columns of fc1_experts_weights are not pairs"
    inner = columns // 2 if fused else columns
    for layer, width, terms in (
        (first, columns, hidden),
        (second, hidden, inner),
        (third, inner, hidden),
    ):
        if shapes[layer.w] is not None:
            yield from _layer(node, layer, shapes, (router[1], width, terms))


def _layer(node: Node, layer: Layer, shapes: Shapes, sizes: tuple[int, int, int]) -> Iterable[str]:
    """Faults of a product; sizes: experts, columns, terms."""
    experts, columns, terms = sizes
    name, packed = f"{layer.name}_experts", terms
    if layer.bits:
        packed = terms * layer.bits // 8
        if terms * layer.bits % 8:
            yield f"{terms} terms of {layer.bits} bits are not whole bytes"
    yield from is_of_shape(f"{name}_weights", shapes[layer.w], (experts, columns, packed))
    yield from is_of_shape(f"{name}_bias", shapes[layer.bias], (experts, columns))
    if not layer.bits:
        return
    size = node.attrs.get("block_size", 0)
    due: Shape = (experts, columns)
    points: Shape = (experts, -(-columns * layer.bits // 8))
    if size > 0:
        blocks = -(-terms // size)
        due = (experts, columns, blocks)
        points = (experts, columns, -(-blocks * layer.bits // 8))
    yield from is_of_shape(f"{layer.name}_scales", shapes[layer.scales], due)
    yield from is_of_shape(f"{layer.name}_zero_points", shapes[layer.zeros], points)
