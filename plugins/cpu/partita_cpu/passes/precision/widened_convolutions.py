"""Convolutions of 16-bit floats, and what follows them, computed in float32 from end to end.

A node of 16-bit floats is computed through float32 copies in any case. Where one convolution leads
to the next, the copies between them are left out, and the nodes become those that fusion, images
with channels last and the kernels of convolutions know. Numbers are rounded to 16 bits where the
model's other nodes read them, not at each node, as onnxruntime does it too. Converters leave some
operators in float32, Resize for one, with a Cast on either side: those round nothing either, but
for two of them with nothing in between.
"""

from __future__ import annotations

import numpy as np

from partita.lowering import Graph, Node, Value
from partita.model.op_traits import Trait, having
from partita.system.memory_map import spilled
from partita_cpu.kernels.half import BFLOAT16, FLOAT32
from partita_cpu.kernels.operator_table import HALVES

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "com.microsoft::FusedConv"})

_OTHERS = (
    *("AveragePool", "BatchNormalization", "Concat", "DepthToSpace", "Dropout"),
    *("GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization", "Pad", "ReduceMean"),
    *("Resize", "Softmax", "SpaceToDepth", "Split", "Upsample", "Where"),
)

_FOLLOWERS = having(Trait.ELEMENTWISE) | having(Trait.SELECTS) | frozenset(_OTHERS)
"""Operators that take float32 numbers in place of 16-bit floats, and yield them."""

_BESIDE = frozenset({np.dtype(np.bool_), np.dtype(np.int64)})
"""Types of second results: masks of Dropout, indices of MaxPool."""

_CAST_TO = {FLOAT32: 1, np.dtype(np.float16): 10, BFLOAT16: 16}
"""Element types as ONNX numbers them."""


def widen_convolutions(graph: Graph) -> None:
    """Rewrites a graph in place, and the bodies in it."""
    for node in graph.nodes:
        for body in node.graphs():
            widen_convolutions(body)
    if any(node.kind in _CONVOLUTIONS for node in graph.nodes):
        _Widening(graph).run()


class _Widening:
    """One walk over the nodes of a graph, which makes the nodes that take their places.

    Args:
        graph: Changed in place by :meth:`run`.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._wide: dict[Value, Value] = {}  # by the value of 16 bits
        self._computed: set[Value] = set()  # of 16 bits, whose numbers nodes compute in float32
        self._given: set[Value] = set()  # of those, what a Cast makes of float32
        self._narrow: set[Value] = set()  # of those, the ones that a Cast writes by now
        self._nodes: list[Node] = []

    def run(self) -> None:
        """Rewrites the graph's nodes."""
        for node in self._graph.nodes:
            if self._is_widened(node):
                inputs = [None if v is None else self._widened(v, node) for v in node.inputs]
                outputs = [None if v is None else self._result(v) for v in node.outputs]
                self._nodes.append(node.like(inputs, outputs))
            elif node.kind in ("Shape", "Size"):
                self._nodes.append(
                    node.like([self._wide.get(v, v) if v else v for v in node.inputs])
                )
            elif node.kind != "Cast" or not self._passes_on(node):
                self._narrow_all(node.reads(), node)
                self._nodes.append(node)
        self._narrow_all(self._graph.outputs, self._nodes[-1])
        self._graph.nodes = self._nodes

    def _is_widened(self, node: Node) -> bool:
        outputs = [value for value in node.outputs if value is not None]
        if not outputs or not all(_is_half(v) or v.dtype in _BESIDE for v in outputs):
            return False
        halves = [v for v in node.inputs if v is not None and v.const is None and _is_half(v)]
        if node.kind in _CONVOLUTIONS:
            return bool(halves)
        return node.kind in _FOLLOWERS and bool(halves) and self._computed.issuperset(halves)

    def _passes_on(self, node: Node) -> bool:
        """Whether a Cast between float32 and 16 bits has become one that changes nothing."""
        source, target = node.inputs[0], node.outputs[0]
        if source is None or target is None or source.const is not None:
            return False
        if source.dtype == FLOAT32 and _is_half(target):
            self._given.add(target)
            target = self._result(target)
        elif target.dtype == FLOAT32 and source in self._computed - self._given:
            source = self._wide[source]
        else:
            return False
        self._cast(source, target, node.name, node.origins)
        return True

    def _result(self, value: Value) -> Value:
        """What a widened node writes in place of a value."""
        if not _is_half(value):
            return value
        self._computed.add(value)
        wide = self._wide[value] = Value(f"{value.name}:wide", FLOAT32, value.shape)
        return wide

    def _widened(self, value: Value, reader: Node) -> Value:
        """A value in float32, for a node that is widened."""
        if not _is_half(value):
            return value
        wide = self._wide.get(value)
        if wide is None:
            if value.const is not None:
                wide = Value.constant(spilled(value.const.astype(np.float32)), value.name)
            else:
                wide = Value(f"{value.name}:wide", FLOAT32, value.shape)
                self._cast(value, wide, f"{reader.name}/{value.name}", reader.origins)
            self._wide[value] = wide
        return wide

    def _narrow_all(self, values: list[Value], reader: Node) -> None:
        """Writes values that were computed in float32 as those that others read."""
        for value in values:
            if value in self._computed and value not in self._narrow:
                self._narrow.add(value)
                wide = self._wide[value]
                owner = wide.producer or reader
                self._cast(wide, value, f"{owner.name}/{wide.name}", owner.origins)

    def _cast(self, source: Value, target: Value, name: str, origins: tuple[str, ...]) -> None:
        attrs = {"to": _CAST_TO[target.dtype]}
        self._nodes.append(
            Node("Cast", [source], [target], attrs, version=13, name=name, origins=origins)
        )


def _is_half(value: Value) -> bool:
    return value.dtype in HALVES
