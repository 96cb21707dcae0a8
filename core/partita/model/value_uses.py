"""What operations read, the bodies of If, Loop and Scan included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

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


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that If, Loop and Scan nodes hold as attributes."""
    for attribute in node.attributes.values():
        if attribute.type.name == "GRAPH":
            yield attribute.as_graph()
        elif attribute.type.name == "GRAPHS":
            yield from attribute.as_graphs()


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
