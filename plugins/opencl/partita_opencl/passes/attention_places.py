"""Attention reads queries, keys and values within the tensors that hold them, shapes being known.

Models take them out of the rows of one product by reshapes, transpositions and slices, each of
which would be a launch; the kernel takes any steps between batches, heads and rows.
"""

from __future__ import annotations

from typing import NamedTuple

from partita.lowering import Graph, Node, Value
from partita.lowering.fusion.strided_values import Strided, seen_through, takes_elements
from partita.lowering.geometry.heads_first import heads_first
from partita.lowering.nhwc.conversion import Shapes
from partita_opencl.passes.nhwc import UNIT

PLACES = "places"
"""Attribute of attention: a :class:`Place` for each of queries, keys and values."""


class Place(NamedTuple):
    """Where queries, keys or values lie within a tensor.

    Where sizes of a model vary, those of batches and rows, and steps made of them, are symbolic.

    Attributes:
        shape: Sizes (batch, row, head, element).
        steps: Elements of the tensor between batches, heads and rows, and before the first.
    """

    shape: tuple[int, int, int, int]
    steps: tuple[int, int, int, int]


def attend_in_place(graph: Graph, shapes: Shapes) -> None:
    """Lets attention read what only takes elements of others there; that goes if nobody reads it.

    Args:
        graph: Its list of nodes is changed; the nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.
    """
    makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
    passed: set[Node] = set()
    for index, node in enumerate(graph.nodes):
        if node.kind != "partita::Attention" or PLACES in node.attrs:
            continue
        found = [_found(x, makers, shapes) for x in node.inputs[:3] if x is not None]
        if len(found) != 3 or not any(nodes for _, nodes in found):
            continue
        first = heads_first(node)
        places = [_place(view, first[n]) for n, (view, _) in enumerate(found)]
        inputs = [view.base for view, _ in found]
        graph.nodes[index] = node.like([*inputs, node.input(3)], attrs={PLACES: places})
        passed.update(step for _, nodes in found for step in nodes)
    _leave_out(graph, passed)


def _found(x: Value, makers: dict[Value, Node], shapes: Shapes) -> tuple[Strided, list[Node]]:
    """The farthest tensor in which the kernel can read a value, and the nodes on the way."""
    best: tuple[Strided, list[Node]] = Strided.whole(x, shapes[x]), []
    value, way = x, list[tuple[Node, Value]]()
    while (node := makers.get(value)) is not None and takes_elements(node):
        source = node.inputs[0]
        if source is None or source.const is not None:
            break
        way.insert(0, (node, value))
        value = source
        if not all(type(size) is int for size in shapes.get(source, ("",))):
            break
        view: Strided | None = Strided.whole(source, shapes[source])
        for step, result in way:
            view = None if view is None else seen_through(step, result, view, shapes)
        if view is not None and _fits(view):
            best = view, [step for step, _ in way]
    return best


def _fits(view: Strided) -> bool:
    """Whether elements of a head are neighbours, and all rows begin at whole units."""
    *steps, element = view.strides
    between = [step for size, step in zip(view.shape, steps, strict=False) if size != 1]
    return element == 1 and not any(step % UNIT for step in (*between, view.start))


def _place(view: Strided, heads_first: bool) -> Place:
    order = (0, 2, 1, 3) if heads_first else (0, 1, 2, 3)
    batch, row, head, _ = (view.strides[axis] for axis in order)
    sizes = [view.shape[axis] for axis in order]
    return Place((sizes[0], sizes[1], sizes[2], sizes[3]), (batch, head, row, view.start))


def _leave_out(graph: Graph, passed: set[Node]) -> None:
    """Takes away those of the nodes that nobody reads any more."""
    used = {
        *graph.outputs,
        *(v for node in graph.nodes if node not in passed for v in node.reads()),
    }
    kept = []
    for node in reversed(graph.nodes):
        if node in passed:
            if not used & {v for v in node.outputs if v is not None}:
                continue
            used.update(node.reads())
        kept.append(node)
    graph.nodes = kept[::-1]
