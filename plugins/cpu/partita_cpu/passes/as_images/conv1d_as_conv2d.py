"""Convolutions over sequences become ones over images of one row, for which there are kernels."""

from __future__ import annotations

from partita.lowering import Node, Value
from partita_cpu.passes.as_images.lifting import Lifting, constant_weights

_CONVOLUTIONS = ("Conv", "partita::Conv", "ConvTranspose", "partita::ConvTranspose")
_POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
_ROWS = 2
"""The axis of an image that a sequence lacks."""

_NEUTRAL = {
    "kernel_shape": [1],
    "strides": [1],
    "dilations": [1],
    "pads": [0],
    "output_padding": [0],
    "output_shape": [1],
}
"""What attributes per axis are for the axis that is new."""


class Sequences(Lifting):
    """(N, C, L) as (N, C, 1, L)."""

    rank = 3
    mark = "row"

    def is_convolution(self, node: Node) -> bool:
        """Convolutions by constant weights, transposed ones among them."""
        if node.kind not in _CONVOLUTIONS or not self.holds(node.inputs[0]):
            return False
        residual = node.input(3)
        return constant_weights(node, 3) is not None and (residual is None or self.holds(residual))

    def follows(self, node: Node) -> bool:
        """Pools too."""
        if node.kind in _POOLS and len(node.outputs) == 1 and self.holds(node.outputs[0]):
            return node.inputs[0] in self.lifted
        return super().follows(node)

    def lift(self, node: Node, output: Value) -> None:
        """The same operator, with attributes for one axis more."""
        inputs = [None if value is None else self.bring(value, node) for value in node.inputs]
        attrs = {name: _widened(name, given) for name, given in node.attrs.items()}
        self.finish(output, node.like(inputs, [], attrs))

    def image_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """One row."""
        n, channels, length = shape
        return n, channels, 1, length

    def constant_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """One row, where it has channels."""
        if len(shape) > self.rank:
            return None
        return shape if len(shape) < _ROWS else (*shape[:-1], 1, shape[-1])


def _widened(name: str, given: object) -> object:
    """An attribute for images of one row; those for both ends of each axis have two parts."""
    if name not in _NEUTRAL or not isinstance(given, (list, tuple)):
        return given
    neutral = _NEUTRAL[name]
    if name == "pads":
        return [*neutral, given[0], *neutral, given[1]]
    return [*neutral, *given]
