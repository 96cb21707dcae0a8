"""Small changes of a graph: who reads what, and what nobody reads any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.model.value_uses import bodies

if TYPE_CHECKING:
    import onnx_ir as ir


def let_read(old: ir.Value, new: ir.Value) -> None:
    """Lets all who read a value read another one; an output of the graph becomes it too."""
    import onnx_ir as ir

    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def drop_unused(graph: ir.Graph) -> None:
    """Removes operations that nothing reads any more."""
    for node in reversed([*graph]):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            _forget_bodies(node)
            graph.remove(node, safe=True)


def _forget_bodies(node: ir.Node) -> None:
    """Lets the bodies of an operation read nothing, so that what only they read is unused."""
    for body in bodies(node):
        for inner in body:
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)
