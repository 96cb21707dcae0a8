"""Tensors of int8 that only quantized operators read become uint8, which processors multiply."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array
from partita.model.op_traits import Trait, having

_SIGNED = np.dtype(np.int8)

_SAME = having(Trait.SELECTS) | {"Concat", "DepthToSpace", "SpaceToDepth", "Split", "Tile"}
"""Operators whose results hold elements of the first input alone, or of all inputs."""

_FUSED = having(Trait.SELECTS) | {"Add", "BatchNormalization", "Concat", "Relu"}
"""Operators on floats that are fused where all levels about them are of one type."""

_READS: dict[str, dict[int, int]] = {
    "DequantizeLinear": {0: 2},
    "com.microsoft::DequantizeLinear": {0: 2},
    "QLinearConv": {0: 2},
    "QLinearMatMul": {0: 2},
    "ConvInteger": {0: 2},
    "MatMulInteger": {0: 2},
    "com.microsoft::MatMulIntegerToFloat": {0: 4},
    "com.microsoft::QGemm": {0: 2},
}
"""Operator to places of inputs that may be of either type, and of their zero points."""

_WRITES: dict[str, int] = {
    "QuantizeLinear": 2,
    "com.microsoft::QuantizeLinear": 2,
    "QLinearConv": 7,
    "QLinearMatMul": 7,
    "com.microsoft::QGemm": 8,
}
"""Operator to the place of its result's zero point, if that may be of another type than others."""

_ALIKE: dict[str, dict[int, int]] = {
    **{f"com.microsoft::QLinear{name}": {0: 2, 3: 5} for name in ("Add", "Mul")},
    **{
        f"com.microsoft::QLinear{name}": {0: 2}
        for name in ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax")
    },
}
"""Operators whose inputs and result have one type; the result's zero point is the last input."""


def make_unsigned(graph: Graph) -> None:
    """Moves levels of int8 by 128, and their zero points with them, where nobody can tell.

    Instructions that multiply bytes take uint8 on the left; int8 would have to be copied for them.
    A tensor is moved if it is made and read by operators whose zero points are constants, or that
    move elements alone; neither inputs nor outputs of the graph are, nor what bodies read.
    For back-ends whose kernels take either type. Results stay what they are.

    Args:
        graph: The graph, before constants are folded; changed in place, bodies in it too.
    """
    for node in graph.nodes:
        for body in node.graphs():
            make_unsigned(body)
    made = [value for node in graph.nodes for value in node.outputs if value is not None]
    signed = {value: value for value in made if value.dtype == _SIGNED}
    if not signed:
        return
    tensors = _Tensors(signed)
    for value in graph.outputs:
        tensors.keep(value)
    for node in graph.nodes:
        tensors.visit(node)
    moved = tensors.moved()
    for node in graph.nodes:
        _move(node, moved)
    for value in moved:
        value.dtype = np.dtype(np.uint8)


class _Tensors:
    """Which tensors of int8 must be of one type, and which must stay.

    Args:
        parents: The tensors; each is its own parent.
    """

    def __init__(self, parents: dict[Value, Value]) -> None:
        self._parents = parents
        self._kept: set[Value] = set()
        self._levels: dict[Value, list[Value]] = {}

    def keep(self, value: Value | None) -> None:
        """Leaves a tensor as it is."""
        if value in self._parents:
            self._kept.add(value)

    def moved(self) -> set[Value]:
        """The tensors that may become uint8."""
        kept = {self._root(value) for value in self._kept}
        return {value for value in self._parents if self._root(value) not in kept}

    def visit(self, node: Node) -> None:
        """Takes note of what a node reads and writes."""
        self._visit_floats(node)
        free = {*_READS.get(node.kind, ())} if _has_known_zeros(node, _READS) else set()
        result = node.result
        if node.kind in _SAME:
            first = node.inputs if node.kind == "Concat" else node.inputs[:1]
            self._join([*first, *node.outputs])
            free.update(range(len(first)))
        elif node.kind in _ALIKE and _has_known_zeros(node, _ALIKE):
            places = _ALIKE[node.kind]
            self._join([*(node.input(place) for place in places), result])
            free.update(places)
            if not _is_known(node, _result_zero(node)):
                self.keep(result)
        elif not _writes_by_constant(node):
            for value in node.outputs:
                self.keep(value)
        for place, value in enumerate(node.inputs):
            if place not in free:
                self.keep(value)
        for body in node.graphs():
            for value in body.captures():
                self.keep(value)

    def _visit_floats(self, node: Node) -> None:
        """Takes note of the levels that floats are made of, and joins what is made of the floats.

        Levels that are constants can be moved with any others.
        """
        x, result = node.input(0), node.result
        if x is None or result is None:
            return
        if node.kind == "DequantizeLinear":
            self._levels[result] = [x] if x.dtype == _SIGNED and x.const is None else []
        elif node.kind in _FUSED:
            reads = [self._levels.get(value, []) for value in node.inputs if value is not None]
            self._levels[result] = list(dict.fromkeys(itertools.chain(*reads)))
        elif node.kind == "QuantizeLinear" and result.dtype == _SIGNED:
            self._join([*self._levels.get(x, ()), result])

    def _root(self, value: Value) -> Value:
        while self._parents[value] is not value:
            self._parents[value] = value = self._parents[self._parents[value]]
        return value

    def _join(self, values: Iterable[Value | None]) -> None:
        """Says that tensors have one type; what is no result of a node keeps the others."""
        found = [value for value in values if value is not None]
        ours = [value for value in found if value in self._parents]
        for value in ours[1:]:
            self._parents[self._root(value)] = self._root(ours[0])
        if len(ours) < len(found):
            for value in ours:
                self.keep(value)


def _has_known_zeros(node: Node, table: dict[str, dict[int, int]]) -> bool:
    return all(_is_known(node, place) for place in table.get(node.kind, {}).values())


def _is_known(node: Node, place: int) -> bool:
    """Whether a zero point is a constant, or left out where it is known how many there are."""
    zero = node.input(place)
    if zero is None and node.op_type == "DequantizeLinear":
        zero = node.inputs[1]
    return zero is None or zero.const is not None


def _writes_by_constant(node: Node) -> bool:
    """Whether a constant alone says of which type a result is."""
    place = _WRITES.get(node.kind)
    zero = None if place is None else node.input(place)
    return zero is not None and zero.const is not None and not node.attrs.get("output_dtype")


def _result_zero(node: Node) -> int:
    """Where a node of `_ALIKE` has the zero point of its result."""
    return max(_ALIKE[node.kind].values()) + 2


def _move(node: Node, moved: set[Value]) -> None:
    """Moves the zero points of what a node reads and writes."""
    reads = _READS.get(node.kind, _ALIKE.get(node.kind, {}))
    places = [zero for place, zero in reads.items() if node.input(place) in moved]
    if node.result in moved:
        if node.kind in _WRITES:
            places.append(_WRITES[node.kind])
        elif node.kind in _ALIKE:
            places.append(_result_zero(node))
    for place in places:
        zero = _levels_of_zero(node, place).astype(np.int16) + 128
        node.inputs += [None] * (place + 1 - len(node.inputs))
        node.inputs[place] = Value.constant(np.asarray(zero, np.uint8))


def _levels_of_zero(node: Node, place: int) -> Array:
    """A zero point that `_is_known`; DequantizeLinear has as many as scales."""
    zero = node.input(place)
    if zero is not None and zero.const is not None:
        return zero.const
    scale = node.inputs[1] if node.op_type == "DequantizeLinear" else None
    return np.zeros(() if scale is None or scale.const is None else scale.const.shape, _SIGNED)
