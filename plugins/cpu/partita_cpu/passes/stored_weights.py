"""Large weights of 16 bits stay what they are: products read them instead of float32 copies.

Models often keep weights in float16 or bfloat16 and have a Cast for each. Folded, as other nodes on
constants are, that would be a copy of twice the size, which each token of a decoder reads whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from partita.lowering import Graph, Node, Value
from partita_cpu.gemm.precision_policy import Choice
from partita_cpu.gemm.product_steps import reads_stored

_FLOAT32 = np.dtype(np.float32)

_PRODUCTS = frozenset({"MatMul", "partita::MatMul"})

_WEIGHTS = 1
"""The input of a product that is a matrix of weights."""


def widens_stored(choice: Choice, node: Node) -> bool:
    """Whether a node on constants makes float32 of large weights, which products can do without.

    Folding leaves such nodes, so that what is fused meanwhile computes in float32; what they make
    is then known by its type and shape alone.
    """
    if node.kind != "Cast" or node.inputs[0] is None or node.inputs[0].const is None:
        return False
    stored, made = node.inputs[0].const, node.outputs[0]
    if made is None or made.dtype != _FLOAT32 or not reads_stored(choice, stored):
        return False
    made.shape = stored.shape
    return True


def keep_stored(graph: Graph, choice: Choice) -> bool:
    """Lets products read what such nodes would widen, and drops those that nobody else reads.

    Returns whether some are left, which can be folded now.

    Args:
        graph: Fused; changed, bodies included.
        choice: What kernels may use.
    """
    graphs = list(_graphs(graph))
    stored = {
        node.outputs[0]: node.inputs[0]
        for one in graphs
        for node in one.nodes
        if widens_stored(choice, node)
    }
    if not stored:
        return False
    uses: Counter[Value | None] = Counter(value for one in graphs for value in _read(one))
    for one in graphs:
        for node in one.nodes:
            _read_stored(node, stored, uses)
    for one in graphs:
        one.nodes = [
            node
            for node in one.nodes
            if not node.outputs or node.outputs[0] not in stored or uses[node.outputs[0]]
        ]
    return any(uses[made] for made in stored)


def _read_stored(
    node: Node, stored: Mapping[Value | None, Value | None], uses: Counter[Value | None]
) -> None:
    weights = node.inputs[_WEIGHTS] if node.kind in _PRODUCTS else None
    if weights is not None and weights in stored:
        node.inputs[_WEIGHTS] = stored[weights]
        uses[weights] -= 1


def _graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.nodes:
        for body in node.graphs():
            yield from _graphs(body)


def _read(graph: Graph) -> Iterator[Value]:
    """What nodes of a graph read, and what it has for results; not what its bodies do."""
    for node in graph.nodes:
        yield from (value for value in node.inputs if value is not None)
    yield from graph.outputs
