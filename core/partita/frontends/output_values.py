"""Outputs of graphs, each with a value and a name of its own."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def separate_outputs(graph: ir.Graph, *, sources: bool = False) -> None:
    """Gives outputs that return a value once more a copy of it, named ``NAME/PLACE``.

    ONNX lets a graph list a value several times; requests find outputs by name.

    Args:
        graph: The graph, which is changed.
        sources: Whether inputs and initializers that are returned are copied, too.
    """
    import onnx_ir as ir

    seen: set[ir.Value] = set()
    again = []
    for place, value in enumerate(graph.outputs):
        if value in seen or (sources and value.producer() is None):
            again.append((place, value))
        seen.add(value)
    taken = _names(graph) if again else set()
    for place, value in again:
        node = ir.node("Identity", [value], name=f"{value.name}/output_{place}")
        copy = node.outputs[0]
        copy.name = _free(f"{value.name}/{place}", taken)
        taken.add(copy.name)
        copy.type, copy.shape = value.type, value.shape
        graph.append(node)
        graph.outputs[place] = copy


def _names(graph: ir.Graph) -> set[str | None]:
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return {*graph.initializers, *(value.name for value in values)}


def _free(name: str, taken: Set[str | None]) -> str:
    while name in taken:
        name += "_"
    return name
