"""What operations read and hold, the bodies of If, Loop and Scan included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

_GRAPH, _GRAPHS = 5, 10
"""Types of attributes, by their numbers in protobufs: to ask an enumeration for a name takes ten
times as long."""

_GENERATORS = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    }
)


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Inputs of the node, and what its bodies read from outside of themselves."""
    for value in node.inputs:
        if value is not None:
            yield value
    yield from captures(node)


def captures(node: ir.Node) -> Iterator[ir.Value]:
    """What the node's bodies read from outside of themselves."""
    for body in bodies(node):
        yield from _captures(body)


def attributes(node: ir.Node) -> Iterable[ir.Attr]:
    """A node's attributes, past the class around them that looks each up by its name."""
    return node.attributes.data.values()


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs that If, Loop and Scan nodes hold as attributes."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():  # as above: this is asked of each node often
        kind = attribute.type
        if kind == _GRAPH:
            found.append(attribute.as_graph())
        elif kind == _GRAPHS:
            found += attribute.as_graphs()
    return found


def operations(graph: ir.Graph | ir.Function) -> tuple[list[ir.Node], list[ir.Graph]]:
    """All operations in order, those in bodies behind the one that holds the body; the bodies.

    Each body comes before those within it.
    """
    nodes: list[ir.Node] = []
    found: list[ir.Graph] = []
    for node in graph:
        nodes.append(node)
        for body in bodies(node):
            inner = operations(body)
            nodes += inner[0]
            found += [body, *inner[1]]
    return nodes, found


def has_own_source(node: ir.Node) -> bool:
    """Whether the operation makes values of its own, so that running it once would change it."""
    return node.op_type in _GENERATORS or any(
        has_own_source(inner) for body in bodies(node) for inner in body
    )


def _captures(body: ir.Graph) -> Iterator[ir.Value]:
    own = set(body.inputs) | set(body.initializers.values())
    for node in body:
        for value in values_read(node):
            if value not in own:
                yield value
        own.update(node.outputs)
    for value in body.outputs:
        if value not in own:
            yield value
