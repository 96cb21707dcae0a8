"""Small changes of a graph: what is added, who reads what, and what nobody reads any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partita.model.value_uses import bodies

if TYPE_CHECKING:
    import onnx_ir as ir


class GraphWriter:
    """Adds operations and constants to a graph, all named after the same prefix.

    Args:
        graph: The graph.
        prefix: Of their names; no other writer of the graph has it.
    """

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self._graph = graph
        self._prefix = prefix
        self._count = 0

    def emit(
        self, before: ir.Node, op_type: str, *inputs: ir.Value | None, **attributes: Any
    ) -> ir.Value:
        """Adds an operation of one result, which is returned.

        Args:
            before: The operation in front of which it stands.
            op_type: One of ONNX.
            inputs: What it reads; ``None`` where one is left out.
            attributes: As numbers, texts and lists.
        """
        import onnx_ir as ir

        self._count += 1
        node = ir.node(op_type, inputs, attributes, name=f"{self._prefix}/{op_type}_{self._count}")
        node.outputs[0].name = f"{node.name}/result"
        self._graph.insert_before(before, node)
        return node.outputs[0]

    def const(self, elements: Any) -> ir.Value:
        """Adds a constant, as an initializer of the elements' own type and shape."""
        import onnx_ir as ir

        self._count += 1
        tensor = ir.tensor(np.asarray(elements), name=f"{self._prefix}/{self._count}")
        value = ir.Value(
            name=tensor.name,
            const_value=tensor,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(np.shape(elements)),
        )
        self._graph.register_initializer(value)
        return value


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
