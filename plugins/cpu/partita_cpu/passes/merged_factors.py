"""Factors and summands that a tensor meets one after another become one factor and one summand.

Global response normalization (ConvNeXt V2) is ``x + (weight * (x * n) + bias)`` with one number n
for each channel: five passes over an image. As ``x * (1 + weight * n) + bias`` it is two, and the
second is part of a convolution behind it. What is merged is small beside the tensor.

Two constants are no factor, and no summand: the model has them one after another, and what rounds,
cancels or overflows between them is part of its result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partita.lowering import Array, Graph, Node, Value
from partita.lowering.nhwc.conversion import SINGLE, Shapes

_SMALLER = 4
"""How many times as many elements a tensor has as what it is multiplied by, at least."""

_DEEP = 16
"""Nodes one behind another that are looked at: sums of hundreds of tensors are chains as long."""

_CONVOLUTIONS = ("Conv", "partita::Conv")


class _Form(NamedTuple):
    """``source * factor + summand``, and the nodes of whole tensors that compute it.

    A factor of ``None`` is 1, a summand of ``None`` is 0.
    """

    source: Value
    factor: Value | None = None
    summand: Value | None = None
    nodes: tuple[Node, ...] = ()


def merge_factors(graph: Graph, shapes: Shapes) -> Shapes:
    """Merges what tensors are multiplied by and what is added, where that saves passes over them.

    Args:
        graph: Changed in place; its nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.

    Returns:
        Shapes of all values, with those that are new.
    """
    return _Merging(graph, shapes).run()


class _Merging:
    """One walk over a graph."""

    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self.graph = graph
        self.shapes = dict(shapes)
        self.uses, self.outputs = graph.uses(), set(graph.outputs)
        self.makers = {node.result: node for node in graph.nodes if node.result is not None}
        self.small: list[Node] = []  # what the form that is looked at computes of factors

    def run(self) -> Shapes:
        gone: set[Node] = set()
        instead: dict[Node, list[Node]] = {}
        for node in reversed(self.graph.nodes):
            if node in gone or node.kind not in ("Add", "Mul") or node.result is None:
                continue
            self.small = []
            form = self._form(node.result, ())
            parts = (form.factor is not None) + (form.summand is not None)
            if not parts or len(form.nodes) <= parts:
                continue
            gone.update(form.nodes)
            instead.update(self._merged(node, form))
        self.graph.nodes = [
            new
            for node in self.graph.nodes
            for new in instead.get(node, () if node in gone else (node,))
        ]
        return self.shapes

    def _form(self, value: Value, readers: Sequence[Node], deep: int = 0) -> _Form:
        """A value by what it is computed of, as far as nodes inside alone read what is between."""
        node = self.makers.get(value)
        plain = _Form(value)
        if (
            deep == _DEEP
            or node is None
            or node.kind not in ("Add", "Mul")
            or len(node.inputs) != 2
        ):
            return plain
        inside = value not in self.outputs and self.uses.get(value, []) == list(readers)
        shape = self._shape(value)
        if (readers and not inside) or shape is None or value.dtype not in (None, SINGLE):
            return plain
        whole = [v for v in node.inputs if v is not None and self._shape(v) == shape]
        if len(whole) == 2 and node.kind == "Add":
            return self._sum(node, plain, deep)
        small = [v for v in node.inputs if v is not None and v not in whole]
        if len(whole) != 1 or not self._is_small(small[0], shape):
            return plain
        before = len(self.small)
        form, other = self._form(whole[0], (node,), deep + 1), small[0]
        if _are_constants(form.summand if node.kind == "Add" else form.factor, other):
            del self.small[before:]
            return plain
        nodes = (*form.nodes, node)
        if node.kind == "Add":
            return form._replace(summand=self._add(form.summand, other), nodes=nodes)
        summand = None if form.summand is None else self._multiply(form.summand, other)
        factor = other if form.factor is None else self._multiply(form.factor, other)
        return _Form(form.source, factor, summand, nodes)

    def _sum(self, node: Node, plain: _Form, deep: int) -> _Form:
        """Of two forms of one source."""
        before = len(self.small)
        first, second = (self._form(v, (node,), deep + 1) for v in node.inputs if v is not None)
        one = Value.constant(np.ones((), np.float32))
        factors = [one if form.factor is None else form.factor for form in (first, second)]
        if (
            first.source is not second.source
            or not (first.nodes or second.nodes)
            or _are_constants(*factors)
            or _are_constants(first.summand, second.summand)
        ):
            del self.small[before:]
            return plain
        summand = first.summand
        if second.summand is not None:
            summand = self._add(summand, second.summand)
        nodes = (*first.nodes, *second.nodes, node)
        return _Form(first.source, self._add(*factors), summand, nodes)

    def _shape(self, value: Value) -> tuple[int, ...] | None:
        """A value's shape; ``None`` if it varies, so that nothing is decided by its sizes."""
        shape = self.shapes.get(value) if value.const is None else value.const.shape
        return shape if shape is not None and all(type(size) is int for size in shape) else None

    def _is_small(self, value: Value, shape: tuple[int, ...]) -> bool:
        """Whether a value is spread over a tensor of a shape that has many times its elements."""
        own = self._shape(value)
        if own is None or len(own) > len(shape) or value.dtype != SINGLE:
            return False
        return math.prod(own) * _SMALLER <= math.prod(shape)

    def _add(self, a: Value | None, b: Value) -> Value:
        return b if a is None else self._of_two("Add", a, b)

    def _multiply(self, a: Value, b: Value) -> Value:
        if _is_one(a):
            return b
        return a if _is_one(b) else self._of_two("Mul", a, b)

    def _of_two(self, kind: str, a: Value, b: Value) -> Value:
        """The sum or product of two small values, now if both are constants."""
        if a.const is not None and b.const is not None:
            combine = np.add if kind == "Add" else np.multiply
            return Value.constant(np.asarray(combine(a.const, b.const)))
        shape = np.broadcast_shapes(self._shape(a) or (), self._shape(b) or ())
        value = Value(f"{a.name}:{kind}", SINGLE, shape)
        self.shapes[value] = shape
        self.small.append(Node(kind, [a, b], [value], version=14, name=value.name))
        return value

    def _merged(self, last: Node, form: _Form) -> dict[Node, list[Node]]:
        """What takes the places of the last node, and of the convolution that takes a summand."""
        origins = tuple(dict.fromkeys(name for node in form.nodes for name in node.origins))
        nodes, value, result = list(self.small), form.source, last.result
        conv = None
        if form.factor is not None:
            conv = self._convolution_behind(last, form.summand)
            made = result
            if form.summand is not None and conv is None:
                made = Value(f"{last.name}:scaled", SINGLE, self.shapes[value])
                self.shapes[made] = self.shapes[value]
            nodes.append(_step(last, "Mul", [value, form.factor], made, origins))
            value = made or value
        if form.summand is not None and conv is not None:
            return {last: nodes, conv: [_with_summand(conv, form.summand)]}
        if form.summand is not None:
            nodes.append(_step(last, "Add", [value, form.summand], result, origins))
        return {last: nodes}

    def _convolution_behind(self, last: Node, summand: Value | None) -> Node | None:
        """The convolution without padding that alone reads a result, if it can take a summand."""
        readers = self.uses.get(last.result, []) if last.result is not None else []
        if last.result in self.outputs or len(readers) != 1 or summand is None:
            return None
        conv, w, bias = readers[0], readers[0].input(1), readers[0].input(2)
        if conv.kind not in _CONVOLUTIONS or conv.inputs.count(last.result) != 1:
            return None
        pads = conv.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        if pads or any(conv.attrs.get("pads") or ()) or int(conv.attrs.get("group", 1)) > 1:
            return None
        if w is None or w.const is None or w.dtype != SINGLE or summand.const is None:
            return None
        if bias is not None and bias.const is None:
            return None
        return conv if summand.const.shape in _spread_shapes(w.const) else None


def _are_constants(*values: Value | None) -> bool:
    return all(value is not None and value.const is not None for value in values)


def _is_one(value: Value) -> bool:
    return value.const is not None and value.const.size == 1 and bool(value.const.item() == 1)


def _spread_shapes(w: Array) -> list[tuple[int, ...]]:
    """Shapes of one number for each channel that a convolution reads."""
    pixel = (1,) * (w.ndim - 2)
    return [(w.shape[1], *pixel), (1, w.shape[1], *pixel)]


def _step(
    like: Node,
    kind: str,
    inputs: list[Value | None],
    output: Value | None,
    origins: tuple[str, ...],
) -> Node:
    return Node(kind, inputs, [output], version=14, name=like.name, origins=origins)


def _with_summand(conv: Node, summand: Value) -> Node:
    """A convolution of an image without a summand, whose bias has what that comes to."""
    w, bias = conv.input(1), conv.input(2)
    if w is None or w.const is None or summand.const is None:
        return conv
    taps = w.const.reshape(*w.const.shape[:2], -1).sum(2, dtype=np.float64)
    row = taps @ summand.const.reshape(-1).astype(np.float64)
    if bias is not None and bias.const is not None:
        row = row + bias.const
    inputs = [conv.inputs[0], w, Value.constant(row.astype(np.float32)), *conv.inputs[3:]]
    return conv.like(inputs)
