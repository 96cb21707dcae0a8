"""Products and convolutions of 16-bit floats, and what follows them, computed in float32.

A node of 16-bit floats is computed through float32 copies in any case. Where one product leads
to the next, the copies between them are left out, and the nodes become those that fusion, images
with channels last and the kernels of products know. Numbers are rounded to 16 bits where the
model's other nodes read them, not at each node, as onnxruntime does it too. Converters leave some
operators in float32, Resize for one, with a Cast on either side: those round nothing either, but
for two of them with nothing in between.
"""

from __future__ import annotations

import numpy as np

from partita.lowering import Graph, Node, Value, fuse
from partita.lowering.fusion.pointwise import fuse_gelu
from partita.lowering.fusion.stored_weights import Reads
from partita.model.op_traits import Trait, having
from partita.system.memory_map import spilled
from partita_cpu.kernels.half import BFLOAT16, FLOAT32
from partita_cpu.kernels.operator_table import HALVES
from partita_cpu.query import takes

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "com.microsoft::FusedConv"})

_PRODUCTS = _CONVOLUTIONS | frozenset(
    (
        *("Gemm", "MatMul"),
        *(f"com.microsoft::{kind}" for kind in ("FusedGemm", "FusedMatMul", "TransposeMatMul")),
        "com.microsoft::MatMulNBits",
    )
)

_WEIGHTS = 1
"""The input of a MatMul that is a matrix of weights."""

_NORMALIZATIONS = (
    *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"),
    *("RMSNormalization", "SimplifiedLayerNormalization"),
    *(
        f"com.microsoft::{kind}LayerNormalization"
        for kind in ("Simplified", "Skip", "SkipSimplified")
    ),
)

_COMPUTING = having(Trait.ELEMENTWISE) | frozenset(
    (
        *_NORMALIZATIONS,
        *("AveragePool", "Dropout", "GlobalAveragePool", "GlobalMaxPool", "LogSoftmax", "MaxPool"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Resize", "Softmax", "Upsample"),
        *(f"com.microsoft::{kind}" for kind in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")),
    )
)
"""Operators that compute float32 numbers of 16-bit floats, and may as well read and yield them."""

_CACHING = "com.microsoft::GroupQueryAttention"

_KEPT_INPUTS = {"com.microsoft::MatMulNBits": frozenset({2, 3}), _CACHING: frozenset({3, 4})}
"""Inputs that stay as they are: scales and zero points of blocks, caches."""

_KEPT_OUTPUTS = {_CACHING: frozenset({1, 2})}

_VIEWS = frozenset(
    {"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose result holds all elements of the first input, and which products take in."""

_MOVING = (having(Trait.SELECTS) - {"MaxPool"}) | frozenset(
    ("Concat", "DepthToSpace", "Pad", "SpaceToDepth", "Split", "Tile", "Where")
)
"""Operators that move 16-bit floats as they are: there is nothing to save unless all of their
numbers are float32 anyway, and much to copy where one of them is a cache."""

_BESIDE = frozenset({np.dtype(np.bool_), np.dtype(np.int64)})
"""Types of second results: masks of Dropout, indices of MaxPool."""

_CAST_TO = {FLOAT32: 1, np.dtype(np.float16): 10, BFLOAT16: 16}
"""Element types as ONNX numbers them."""


def widen_halves(graph: Graph, reads: Reads) -> None:
    """Rewrites a graph in place, and the bodies in it.

    Args:
        graph: Changed, if it has products or convolutions of 16-bit floats.
        reads: Which matrices stay as they are: a Cast is put between one and its product, which
            `fold_and_fuse` takes away. All other constants become float32.
    """
    for node in graph.nodes:
        for body in node.graphs():
            widen_halves(body, reads)
    if any(_multiplies_halves(node) for node in graph.nodes):
        fuse(graph, [fuse_gelu], takes)  # it knows by their type that constants are rounded
        _Widening(graph, reads).run()


def _multiplies_halves(node: Node) -> bool:
    return node.kind in _PRODUCTS and bool(_halves_of(node))


def _halves_of(node: Node) -> list[Value]:
    """The 16-bit floats that a node reads; not constants, nor those that it has to read so."""
    kept = _KEPT_INPUTS.get(node.kind, ())
    return [
        value
        for place, value in enumerate(node.inputs)
        if value is not None and value.const is None and _is_half(value) and place not in kept
    ]


class _Widening:
    """One walk over the nodes of a graph, which makes the nodes that take their places.

    Args:
        graph: Changed in place by :meth:`run`.
        reads: As for `widen_halves`.
    """

    def __init__(self, graph: Graph, reads: Reads) -> None:
        self._graph = graph
        self._reads = reads
        self._wide: dict[Value, Value] = {}  # by the value of 16 bits
        self._computed: set[Value] = set()  # of 16 bits, whose numbers nodes compute in float32
        self._given: set[Value] = set()  # of those, what a Cast makes of float32
        self._narrow: set[Value] = set()  # of those, the ones that a Cast writes by now
        self._views: set[Node] = set()  # of 16 bits
        self._replaced: set[Node] = set()  # of those, which have a twin in float32
        self._nodes: list[Node] = []

    def run(self) -> None:
        """Rewrites the graph's nodes."""
        for node in self._graph.nodes:
            if self._is_widened(node):
                inputs = [self._input(node, place) for place in range(len(node.inputs))]
                self._narrow_all([v for v in inputs if v is not None], node)  # those it keeps
                outputs = [self._output(node, place) for place in range(len(node.outputs))]
                self._nodes.append(node.like(inputs, outputs))
            elif node.kind in ("Shape", "Size"):
                self._nodes.append(
                    node.like([self._wide.get(v, v) if v else v for v in node.inputs])
                )
            elif node.kind != "Cast" or not self._passes_on(node):
                self._narrow_all(node.reads(), node)
                self._nodes.append(node)
                if node.kind in _VIEWS:
                    self._views.add(node)
        self._narrow_all(self._graph.outputs, self._nodes[-1])
        self._graph.nodes = self._nodes
        self._graph.drop_unread(self._replaced)

    def _is_widened(self, node: Node) -> bool:
        kept = _KEPT_OUTPUTS.get(node.kind, ())
        outputs = [v for place, v in enumerate(node.outputs) if v is not None and place not in kept]
        if not outputs or not all(_is_half(v) or v.dtype in _BESIDE for v in outputs):
            return False
        halves = _halves_of(node)
        if node.kind in _PRODUCTS:
            return bool(halves)
        if node.kind in _COMPUTING or (node.kind == _CACHING and node.input(3) is not None):
            return not self._computed.isdisjoint(halves)
        return node.kind in _MOVING and bool(halves) and self._computed.issuperset(halves)

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

    def _output(self, node: Node, place: int) -> Value | None:
        """What a node that is widened writes in place of an output."""
        value = node.outputs[place]
        if value is None or place in _KEPT_OUTPUTS.get(node.kind, ()):
            return value
        return self._result(value)

    def _input(self, node: Node, place: int) -> Value | None:
        """What a node that is widened reads in place of an input."""
        value = node.inputs[place]
        if value is None or not _is_half(value) or place in _KEPT_INPUTS.get(node.kind, ()):
            return value
        weights = value.const if node.kind == "MatMul" and place == _WEIGHTS else None
        if weights is not None and self._reads(weights):
            wide = Value(f"{value.name}:wide", FLOAT32, weights.shape)
            self._cast(value, wide, f"{node.name}/{value.name}", node.origins)
            return wide
        return self._widened(value, node)

    def _widened(self, value: Value, reader: Node) -> Value:
        """16-bit floats in float32, for a node that is widened."""
        wide = self._wide.get(value)
        if wide is None:
            if value.const is not None:
                wide = Value.constant(spilled(value.const.astype(np.float32)), value.name)
            else:
                wide = Value(f"{value.name}:wide", FLOAT32, value.shape)
                self._write_wide(value, wide, reader)
            self._wide[value] = wide
        return wide

    def _write_wide(self, value: Value, wide: Value, reader: Node) -> None:
        """By a Cast, which comes before views: products take these in."""
        view = value.producer
        source = view.inputs[0] if view in self._views else None
        if view is None or source is None or not _is_half(source):
            self._cast(value, wide, f"{reader.name}/{value.name}", reader.origins)
            return
        self._nodes.append(view.like([self._widened(source, reader), *view.inputs[1:]], [wide]))
        self._replaced.add(view)

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
