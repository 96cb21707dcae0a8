"""Products with constant weights take in what stands round them in decoders of language models.

Weights are of few bits, or halves where matrix units multiply them if there are many rows.
For a token, a kernel's launch takes about as long as what it computes. So products that read the
same rows become one, with the normalization of these before it, and the addition of a residual or
the gate behind it: see ``block_products`` for ``partita::BlockProducts``, which is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from partita.lowering import Activation, ActivationCode, Graph, Node, Value
from partita.lowering.fusion.rewriting import origins
from partita_opencl.passes.nhwc import UNIT

_PRODUCT = "com.microsoft::MatMulNBits"
_DENSE = ("MatMul", "partita::MatMul")
_JOINED = "partita::BlockProducts"

_ATTENTION = "com.microsoft::GroupQueryAttention"

_NORMS = ("SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")


def fuse_decoder(graph: Graph, accepts: Callable[[Node], bool], *, halves: bool) -> None:
    """Rewrites the graph's nodes, where the back-end takes what they become.

    Args:
        graph: Changed in place.
        accepts: Whether the back-end has a kernel for a node.
        halves: Whether what is float32 in the graph is computed in halves by matrix units.
    """
    halves = halves and any(node.kind == _ATTENTION for node in graph.nodes)
    for find in (_heads, _gate, _residual, _norm):
        _Rewriting(graph, accepts, halves).run(find)


class _Part(NamedTuple):
    """A product with constant weights.

    Attributes:
        node: Computes it.
        attrs: Sizes that products which are to be one must have in common.
        columns: Of the result.
        weights: Data, scales, zeros and bias, as far as there are such.
    """

    node: Node
    attrs: dict[str, int]
    columns: int
    weights: tuple[Value | None, ...]

    @classmethod
    def of(cls, node: Node | None, halves: bool) -> _Part | None:
        """The product that a node computes, if it is one."""
        if node is None or node.outputs[0] is None:
            return None
        if node.kind == _PRODUCT and node.input(4) is None:
            weights = tuple(node.input(place) for place in (1, 2, 3, 5))
            names = ("K", "bits", "block_size")
            attrs = {name: int(node.attrs[name]) for name in names if name in node.attrs}
            part = cls(node, {"bits": 4} | attrs, int(node.attrs["N"]), weights)
            return part if all(v is None or v.const is not None for v in weights) else None
        return _dense(node) if halves and node.kind in _DENSE else None


def _dense(node: Node) -> _Part | None:
    """A product with a constant matrix of whole units, which no residual is added to."""
    matrix, bias = node.input(1), node.input(2)
    if matrix is None or matrix.const is None or matrix.const.ndim != 2:
        return None
    depth, columns = matrix.const.shape
    biased = bias is None or (bias.const is not None and bias.const.shape == (columns,))
    if depth % UNIT or columns % UNIT or not depth * columns or not biased:
        return None
    if node.input(3) is not None or node.attrs.get("single", False):
        return None
    attrs = {"K": depth, "bits": 16, "block_size": UNIT}
    return _Part(node, attrs, columns, (matrix, None, None, bias))


def _activation(node: Node) -> Activation | None:
    """What fusion hung on a node, if it is anything."""
    found = node.attrs.get("activation")
    has = isinstance(found, Activation) and found.code is not ActivationCode.NONE
    return found if has else None


class _Rewriting:
    """One kind of rewriting, applied to all nodes of a graph.

    Attributes:
        makers: The node that computes a value.
        halves: See :func:`fuse_decoder`.
    """

    def __init__(self, graph: Graph, accepts: Callable[[Node], bool], halves: bool) -> None:
        self.halves = halves
        self.makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        self._graph, self._accepts = graph, accepts
        self._uses, self._outputs = graph.uses(), set(graph.outputs)

    def run(self, find: Callable[[_Rewriting, Node], Sequence[Node]]) -> None:
        """Puts what ``find`` makes of a node in its place; nodes that nobody reads any more go."""
        nodes: list[Node] = []
        for node in self._graph.nodes:
            made = find(self, node)
            if not made or not all(self._accepts(one) for one in made):
                made = (node,)
                for value in node.outputs:
                    if value is not None:
                        value.producer = node
            nodes += made
        self._graph.nodes = nodes
        self._graph.prune()

    def is_read_once(self, value: Value | None) -> bool:
        """Whether one node reads a value, once, and it is no output."""
        return value is not None and value not in self._outputs and len(self._uses[value]) == 1

    def product(self, value: Value | None, *, active: bool = False) -> _Part | None:
        """The product that computes a value for one reader, with an activation only if asked."""
        if value is None or not self.is_read_once(value):
            return None
        part = _Part.of(self.makers.get(value), self.halves)
        return part if part is not None and active == bool(_activation(part.node)) else None


def _join(
    parts: Sequence[_Part],
    output: Value,
    residual: Value | None = None,
    activation: Activation | None = None,
) -> Node | None:
    """One node for products that read the same rows; ``None`` if their weights are not alike."""
    first = parts[0]
    for other in parts[1:]:
        if other.node.inputs[0] is not first.node.inputs[0] or other.attrs != first.attrs:
            return None
        for pair in zip(first.weights, other.weights, strict=True):
            types = [None if v is None or v.const is None else v.const.dtype for v in pair]
            if types[0] != types[1]:
                return None
    gated = activation is not None
    attrs = {**first.attrs, "N": tuple(part.columns for part in parts), "gated": gated}
    return Node(
        "BlockProducts",
        [
            *(first.node.inputs[0], residual, None),
            *(value for part in parts for value in part.weights),
        ],
        [output],
        attrs | ({"activation": activation} if gated else {}),
        domain="partita",
        name=first.node.name,
        origins=origins(part.node for part in parts),
    )


def _heads(graph: _Rewriting, node: Node) -> Sequence[Node]:
    """Queries, keys and values by one product, which attention takes as they are."""
    if node.kind != _ATTENTION:
        return ()
    parts = [part for value in node.inputs[:3] if (part := graph.product(value)) is not None]
    if len(parts) < 3 or parts[0].node.outputs[0] is None:
        return ()
    together = Value(f"{node.name}:tokens", parts[0].node.outputs[0].dtype)
    joined = _join(parts, together)
    if joined is None:
        return ()
    return joined, node.like([together, None, None, *node.inputs[3:]])


_GATES = {"partita::Silu": ActivationCode.SILU}


def _gate(graph: _Rewriting, node: Node) -> Sequence[Node]:
    """A product times the activation of another."""
    if node.kind != "Mul" or node.outputs[0] is None:
        return ()
    for active, other in (node.inputs, reversed(node.inputs)):
        gate, activation, between = _activated(graph, active)
        factor = graph.product(other)
        if gate is None or activation is None or factor is None or gate.columns != factor.columns:
            continue
        joined = _join([gate, factor], node.outputs[0], activation=activation)
        if joined is not None:
            joined.origins = origins([gate.node, factor.node, *between, node])
            return (joined,)
    return ()


def _activated(
    graph: _Rewriting, value: Value | None
) -> tuple[_Part | None, Activation | None, Sequence[Node]]:
    """The product whose activation a value is, what that is, and the node for itself, if any."""
    part = graph.product(value, active=True)
    if part is not None:
        return part, _activation(part.node), ()
    maker = graph.makers.get(value) if value is not None and graph.is_read_once(value) else None
    if maker is None:
        return None, None, ()
    code = _GATES.get(maker.kind)
    if maker.kind in ("Gelu", "partita::Gelu"):
        exact = maker.attrs.get("approximate", "none") == "none"
        code = ActivationCode.GELU if exact else ActivationCode.GELU_TANH
    if code is None:
        return None, None, ()
    return graph.product(maker.inputs[0]), Activation(code), (maker,)


def _residual(graph: _Rewriting, node: Node) -> Sequence[Node]:
    """A sum by the product that makes one of its terms, and the sum's normalization for itself."""
    if node.kind != "com.microsoft::SkipSimplifiedLayerNormalization":
        return ()
    if node.input(3) is not None or node.input(0) is node.input(1):
        return ()
    for term, residual in (node.inputs[1::-1], node.inputs[:2]):
        product = graph.product(term)
        if product is None:
            continue
        total = node.outputs[3] if len(node.outputs) > 3 else None
        total = total or Value(f"{node.name}:sum", None if term is None else term.dtype)
        joined = _join([product], total, residual)
        if joined is None:
            return ()
        norm = Node(
            "SimplifiedLayerNormalization",
            [total, node.inputs[2]],
            [node.outputs[0]],
            {"epsilon": node.number("epsilon", 1e-12)},
            domain="com.microsoft",
            name=node.name,
        )
        return joined, norm
    return ()


def _norm(graph: _Rewriting, node: Node) -> Sequence[Node]:
    """Rows that are normalized for a product alone are normalized by it."""
    if node.kind == _JOINED:
        joined = node if node.input(2) is None else None
    else:
        part, target = _Part.of(node, graph.halves), node.outputs[0]
        if part is None or target is None or _activation(node) is not None:
            return ()
        joined = _join([part], target)
    rows = node.inputs[0] if joined is not None else None
    norm = graph.makers.get(rows) if rows is not None and graph.is_read_once(rows) else None
    if joined is None or norm is None or norm.kind not in _NORMS:
        return ()
    scale = norm.inputs[1]
    if scale is None or scale.const is None or scale.const.shape != (joined.attrs["K"],):
        return ()
    if norm.attrs.get("axis", -1) != -1 or any(v is not None for v in norm.outputs[1:]):
        return ()
    return (
        joined.like(
            [norm.inputs[0], joined.inputs[1], scale, *joined.inputs[3:]],
            attrs={"epsilon": norm.number("epsilon", 1e-5)},
            origins=origins([norm, joined]),
        ),
    )
