"""Elements at indices that repeat along all further axes are rows at one index each.

Exporters of PyTorch write ``scatter_add``, ``index_add`` and ``gather`` over rows of features, as
networks over graphs have them, with an index for each element: one for each row, expanded.
"""

from __future__ import annotations

import math

from partita.lowering import Graph, Node, Value
from partita.lowering.nhwc.conversion import Shapes
from partita.lowering.shapes.symbolic_size import integers

_REPEATED = ("Expand", "Tile")


def index_rows(graph: Graph, shapes: Shapes) -> Shapes:
    """Makes ScatterND and GatherND of ScatterElements and GatherElements with such indices.

    Args:
        graph: Changed in place.
        shapes: Of all values that nodes compute.

    Returns:
        Shapes of all values, with those that are new.
    """
    if not any(node.kind in ("ScatterElements", "GatherElements") for node in graph.nodes):
        return shapes
    known = dict(shapes)
    makers = {made: node for node in graph.nodes for made in node.outputs if made is not None}
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _by_rows(node, makers, known) or [node]
    if len(nodes) != len(graph.nodes) or nodes != graph.nodes:
        graph.nodes = nodes
        graph.drop_unread({node for node in nodes if node.kind in _REPEATED})
    return known


def _by_rows(
    node: Node, makers: dict[Value, Node], known: dict[Value, tuple[int, ...]]
) -> list[Node]:
    """The nodes that do the same with one index for a row; none if indices differ in it."""
    if node.kind not in ("ScatterElements", "GatherElements"):
        return []
    x, index, result = node.inputs[0], node.inputs[1], node.result
    expand = None if index is None else makers.get(index)
    single = None if expand is None or expand.kind not in _REPEATED else expand.inputs[0]
    if x is None or index is None or single is None or result is None:
        return []
    shape, wide, narrow = (_shape_of(value, known) for value in (x, index, single))
    if shape is None or wide is None or narrow is None or len(narrow) != len(shape):
        return []
    axis = int(node.attrs.get("axis", 0)) % len(shape)
    scatters = node.kind == "ScatterElements"
    if (scatters and axis) or math.prod(shape[axis + 1 :]) == 1:
        return []
    repeats = narrow[: axis + 1] == wide[: axis + 1] and set(narrow[axis + 1 :]) <= {1}
    if not repeats or wide[:axis] != shape[:axis] or wide[axis + 1 :] != shape[axis + 1 :]:
        return []
    made: list[Node] = []
    rows, sizes = single, (*narrow[: axis + 1], 1)
    if narrow != sizes:
        rows = Value(f"{single.name}:rows", single.dtype, sizes)
        known[rows] = sizes
        given = Value.constant(integers(sizes))
        made.append(Node("Reshape", [single, given], [rows], version=13, name=node.name))
    kind = "ScatterND" if scatters else "GatherND"
    attrs = {"batch_dims": axis}
    if scatters:
        attrs = {"reduction": node.attrs.get("reduction", "none")}
    inputs = [x, rows, *node.inputs[2:]]
    new = Node(kind, inputs, [result], attrs, version=18, name=node.name, origins=node.origins)
    return [*made, new]


def _shape_of(value: Value, known: Shapes) -> tuple[int, ...] | None:
    return known.get(value) if value.const is None else value.const.shape
