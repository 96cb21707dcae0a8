"""What mixtures of experts demand of the shapes of their inputs, and where these are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from partita.lowering.graph import Node
from partita.lowering.shapes.demands import Demand, Shape, Shapes, demands_in, is_of_shape

MIXTURE_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = demands_in(MIXTURE_DEMANDS)


class Layer(NamedTuple):
    """Where one product of all experts of MoE or QMoE has its inputs.

    Attributes:
        name: What the operators call it.
        w: Position of its weights.
        bias: Of its biases.
        scales: Of its scales; 0 for weights that are floats.
        zeros: Of its zero points; likewise.
        bits: Of a weight; 0 for floats.
    """

    name: str
    w: int
    bias: int
    scales: int = 0
    zeros: int = 0
    bits: int = 0

    @property
    def places(self) -> tuple[int, ...]:
        """Positions of all its inputs."""
        known = self.w, self.bias, self.scales, self.zeros
        return tuple(place for place in known if place)

    def is_given(self, node: Node) -> bool:
        """Whether an operation has it."""
        return node.input(self.w) is not None


def layers_of(node: Node) -> tuple[Layer, Layer, Layer]:
    """The products of MoE or QMoE: into the experts, out of them, and the factor of a gate."""
    if node.op_type == "MoE":
        return Layer("fc1", 2, 3), Layer("fc2", 4, 5), Layer("fc3", 6, 7)
    bits = node.attrs.get("expert_weight_bits", 4)

    def layer(number: int, first: int) -> Layer:
        own = node.attrs.get(f"fc{number}_expert_weight_bits", bits)
        return Layer(f"fc{number}", first, first + 2, first + 1, 10 + number, own)

    return layer(1, 2), layer(2, 5), layer(3, 8)


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
        yield f"{columns} columns of fc1_experts_weights are no pairs"
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
            yield f"{terms} terms of {layer.bits} bits are no whole bytes"
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
