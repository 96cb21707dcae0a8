"""Activations that are multiplied by another value, as decoders gate their feed-forward part.

What the activation returns is read by that product alone: as one step it takes no memory, and both
values are gone through once. The result takes the place of what a product of few bits has made for
it; products of floats compute activations themselves.
"""

from __future__ import annotations

import numpy as np

from partita.lowering import Graph, Node, Value
from partita.lowering.nhwc.conversion import Shapes

GATES = ("partita::Silu", "Gelu", "partita::Gelu")
"""What is known as a part of ``partita::Gated``."""

_PRODUCT = "com.microsoft::MatMulNBits"
"""Its result has memory of its own."""


def join_gates(graph: Graph, shapes: Shapes) -> None:
    """Makes one step of activations and the products that alone read them, of floats of a shape."""
    uses, outputs = graph.uses(), set(graph.outputs)
    own = {node.outputs[0] for node in graph.nodes if node.kind == _PRODUCT}
    joined: dict[Node, Node] = {}
    for node in graph.nodes:
        value = node.outputs[0] if node.kind in GATES else None
        readers = [] if value is None or value in outputs else uses.get(value, [])
        if value is not None and len(readers) == 1 and _gates(node, readers[0], shapes):
            joined[readers[0]] = node

    def gated(product: Node, node: Node) -> Node:
        x = node.inputs[0]
        alone = x in own and x not in outputs and x is not None and uses[x] == [node]
        return _gated(product, node, in_place=alone and product.outputs[0] not in outputs)

    gone = set(joined.values())
    graph.nodes = [
        gated(node, joined[node]) if node in joined else node
        for node in graph.nodes
        if node not in gone
    ]


def _gates(node: Node, product: Node, shapes: Shapes) -> bool:
    """Whether a product multiplies what an activation returns by a value that is as large."""
    x, value = node.inputs[0], node.outputs[0]
    if product.kind != "Mul" or product.inputs.count(value) != 1 or x is None or value is None:
        return False
    other = _other(product, node)
    if other is None or {x.dtype, other.dtype} != {np.dtype(np.float32)}:
        return False
    shape = shapes.get(x)
    return shape is not None and shape == shapes.get(other)


def _other(product: Node, node: Node) -> Value | None:
    first, second = product.inputs
    return second if first is node.outputs[0] else first


def _gated(product: Node, node: Node, in_place: bool) -> Node:
    return Node(
        "Gated",
        [node.inputs[0], _other(product, node)],
        product.outputs,
        {"activation": node.op_type, "in_place": in_place, **node.attrs},
        domain="partita",
        version=1,
        name=product.name,
        origins=(*node.origins, *product.origins),
    )
