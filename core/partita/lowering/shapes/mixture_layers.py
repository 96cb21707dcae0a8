"""The products of a mixture of experts, and where each of them has its inputs."""

from __future__ import annotations

from typing import NamedTuple

from partita.lowering.graph import Node


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
