"""Convolutions over sequences become ones over images of one row, for which there are kernels.

Works on graphs whose shapes are known, before images get their channels last; see `layout`.
"""

from __future__ import annotations

from partita.lowering import Graph, Node, Value
from partita.lowering.fusion import Shapes
from partita.lowering.nhwc.conversion import SINGLE
from partita.model.op_traits import Trait, having

_CONVOLUTIONS = ("Conv", "partita::Conv")
_POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
_ROWS = 2
"""The axis of an image that a sequence lacks."""

_NEUTRAL = {"kernel_shape": [1], "strides": [1], "dilations": [1], "pads": [0]}
"""What attributes per axis are for the axis that is new."""


def widen_sequences(graph: Graph, shapes: Shapes) -> Shapes:
    """Rewrites a graph's nodes; values that others read keep their shapes.

    Args:
        graph: Changed in place; its nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.

    Returns:
        The shapes, and those of the new values.
    """
    if not any(_is_convolution(node, shapes) for node in graph.nodes):
        return shapes
    return _Widening(graph, shapes).run()


def _is_sequence(value: Value | None, shapes: Shapes) -> bool:
    if value is None or value.const is not None or value.dtype not in (None, SINGLE):
        return False
    return len(shapes.get(value, ())) == 3


def _is_convolution(node: Node, shapes: Shapes) -> bool:
    """Whether a node is a convolution of sequences by constant weights."""
    if node.kind not in _CONVOLUTIONS or not _is_sequence(node.inputs[0], shapes):
        return False
    w, residual = node.input(1), node.input(3)
    if w is None or w.const is None or w.const.ndim != 3 or w.const.dtype != SINGLE:
        return False
    return residual is None or _is_sequence(residual, shapes)


class _Widening:
    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self._graph = graph
        self._shapes = dict(shapes)
        self._wide: dict[Value, Value] = {}
        self._nodes: list[Node] = []

    def run(self) -> Shapes:
        for node in self._graph.nodes:
            if _is_convolution(node, self._shapes) or self._follows(node):
                self._widen(node)
            else:
                self._nodes.append(node)
        self._graph.nodes = self._nodes
        uses, outputs = self._graph.uses(), set(self._graph.outputs)
        dead = {v for v in self._wide if v not in uses and v not in outputs}
        self._graph.nodes = [node for node in self._nodes if not dead.intersection(node.outputs)]
        return self._shapes

    def _follows(self, node: Node) -> bool:
        """Whether a node computes with images as it does with sequences, and reads wide ones."""
        if node.kind not in having(Trait.ELEMENTWISE) and node.kind not in _POOLS:
            return False
        if len(node.outputs) != 1 or not _is_sequence(node.outputs[0], self._shapes):
            return False
        inputs = [value for value in node.inputs if value is not None]
        if node.kind in _POOLS:
            return inputs[0] in self._wide
        return all(
            value in self._wide or (value.const is not None and value.const.ndim <= 3)
            for value in inputs
        )

    def _widen(self, node: Node) -> None:
        """Puts a node for images, and a view of its result as a sequence, in a node's place."""
        output = node.outputs[0]
        if output is None:
            return
        n, channels, length = self._shapes[output]
        wide = self._value(f"{output.name}:row", (n, channels, 1, length))
        self._wide[output] = wide
        inputs = [None if value is None else self._brought(value, node) for value in node.inputs]
        attrs = {name: _widened(name, given) for name, given in node.attrs.items()}
        self._nodes.append(node.like(inputs, [wide], attrs))
        self._nodes.append(_view("Squeeze", wide, output, node))

    def _brought(self, value: Value, node: Node) -> Value:
        if value.const is not None:
            if value.const.ndim < 2:
                return value
            at = value.const.ndim - 1
            shape = (*value.const.shape[:at], 1, value.const.shape[at])
            return Value.constant(value.const.reshape(shape), value.name)
        found = self._wide.get(value)
        if found is None:
            n, channels, length = self._shapes[value]
            found = self._wide[value] = self._value(f"{value.name}:row", (n, channels, 1, length))
            self._nodes.append(_view("Unsqueeze", value, found, node))
        return found

    def _value(self, name: str, shape: tuple[int, ...]) -> Value:
        value = Value(name, SINGLE, shape)
        self._shapes[value] = shape
        return value


def _view(kind: str, source: Value, target: Value, owner: Node) -> Node:
    attrs = {"axes": [_ROWS]}
    return Node(kind, [source], [target], attrs, name=f"{owner.name}/row", origins=owner.origins)


def _widened(name: str, given: object) -> object:
    """An attribute for images of one row; those for both ends of each axis have two parts."""
    if name not in _NEUTRAL or not isinstance(given, (list, tuple)):
        return given
    neutral = _NEUTRAL[name]
    if name == "pads":
        return [*neutral, given[0], *neutral, given[1]]
    return [*neutral, *given]
