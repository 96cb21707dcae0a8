"""Large weights of 16 bits stay as they are stored: products read them instead of float32 copies.

Models often keep weights in float16 or bfloat16, and have a Cast for each. Folded like other nodes
on constants, these would become copies of twice the size, which a processor reads as a whole for
each token of a decoder, and which a device of 16-bit floats would have to round again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from partita.lowering.constant_folding import fold_constants
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array
from partita.lowering.target import Target

_FLOAT32 = np.dtype(np.float32)

_PRODUCTS = frozenset({"MatMul", "partita::MatMul"})

_WEIGHTS = 1
"""The input of a product that is a matrix of weights."""

Reads = Callable[[Array], bool]
"""Whether a device's products read a matrix of weights as it is."""


def fold_and_fuse(graph: Graph, target: Target, fuse: Callable[[], None], reads: Reads) -> None:
    """Folds constants and fuses nodes; products get weights as they are stored.

    What is fused meanwhile computes in float32, and knows what such weights become by its type and
    shape alone.

    Args:
        graph: Changed, bodies included.
        target: Whose kernels compute what is folded.
        fuse: Fuses nodes of the graph.
        reads: Which weights need no copy in float32.
    """
    fold_constants(graph, target, lambda node: _widens_stored(node, reads))
    fuse()
    if _keep_stored(graph, reads):
        fold_constants(graph, target)


def _widens_stored(node: Node, reads: Reads) -> bool:
    """Whether a node on constants makes float32 of weights, which products can do without."""
    if node.kind != "Cast" or node.inputs[0] is None or node.inputs[0].const is None:
        return False
    stored, made = node.inputs[0].const, node.outputs[0]
    if made is None or made.dtype != _FLOAT32 or not reads(stored):
        return False
    made.shape = stored.shape
    return True


def _keep_stored(graph: Graph, reads: Reads) -> bool:
    """Lets products read what such nodes would widen, and drops those that nobody else reads.

    Returns whether some are left, which can be folded now.
    """
    graphs = list(graphs_of(graph))
    stored = {
        node.outputs[0]: node.inputs[0]
        for one in graphs
        for node in one.nodes
        if _widens_stored(node, reads)
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


def graphs_of(graph: Graph) -> Iterator[Graph]:
    """A graph and the bodies of its nodes, theirs included."""
    yield graph
    for node in graph.nodes:
        for body in node.graphs():
            yield from graphs_of(body)


def _read(graph: Graph) -> Iterator[Value]:
    """What nodes of a graph read, and what it has for results; not what its bodies do."""
    for node in graph.nodes:
        yield from (value for value in node.inputs if value is not None)
    yield from graph.outputs
