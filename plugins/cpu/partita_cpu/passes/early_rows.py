"""Slices of one row are moved in front of what computes the rows, as for a decoder's last token.

A decoder's logits are of a prompt's last token: of what follows the last attention no other row is
needed, and the products of most of a layer are among it.
"""

from __future__ import annotations

from collections.abc import Collection

from partita.lowering import Array, Graph, Node, Value
from partita.lowering.nhwc.conversion import Shapes
from partita_cpu.passes.tiles.tiled_normalizations import NORMALIZATIONS

_OF_BLOCKS = "com.microsoft::MatMulNBits"

_PRODUCTS = (_OF_BLOCKS, "MatMul", "partita::MatMul")
"""By constants; without one of them nothing is gained."""

_ELEMENTWISE = ("Add", "Mul", "Sub", "Sigmoid", "Gelu", "partita::Gelu", "partita::Silu")


def take_rows_early(graph: Graph, shapes: Shapes) -> Shapes:
    """Lets a Gather of one row take it from what nodes before it read that compute rows apart.

    Returns:
        Shapes of all values, with those that are new.
    """
    known = dict(shapes)
    for gather in [node for node in graph.nodes if _takes_one(node, shapes)]:
        apart = _nodes_before(graph, gather, known)
        if any(node.kind in _PRODUCTS for node in apart):
            _move(graph, gather, apart, known)
    return known


def _takes_one(node: Node, shapes: Shapes) -> bool:
    """Whether a node is a Gather of one of several rows."""
    if node.kind != "Gather" or None in node.inputs:
        return False
    x, indices = node.inputs
    shape, index = None if x is None else shapes.get(x), None if indices is None else indices.const
    if shape is None or index is None or index.shape != (1,):
        return False
    axis = node.attrs.get("axis", 0) % len(shape)
    return axis < len(shape) - 1 and bool(shape[axis] > 1)


def _nodes_before(graph: Graph, gather: Node, shapes: Shapes) -> set[Node]:
    """Nodes that compute each row by itself, and whose results it and they alone read."""
    uses, outputs, x = graph.uses(), set(graph.outputs), gather.inputs[0]
    leading = () if x is None else shapes[x][:-1]
    found: set[Node] = set()
    for node in reversed(graph.nodes[: graph.nodes.index(gather)]):
        made = [value for value in node.outputs if value is not None]
        readers = [reader for value in made for reader in uses.get(value, [])]
        alone = all(reader is gather or reader in found for reader in readers)
        if readers and alone and outputs.isdisjoint(made) and _is_by_rows(node, leading, shapes):
            found.add(node)
    return found


def _is_by_rows(node: Node, leading: tuple[int, ...], shapes: Shapes) -> bool:
    """Whether a node computes each row of all that it reads by itself."""
    is_product, is_normal = node.kind in _PRODUCTS, node.kind in NORMALIZATIONS
    if not is_product and not is_normal and node.kind not in _ELEMENTWISE:
        return False
    if is_normal and node.attrs.get("axis", -1) not in (-1, len(leading)):
        return False
    for place, value in enumerate(node.inputs):
        if value is None:
            continue
        if value.const is not None:
            fits = place > 0 and _is_for_all_rows(node, place, value.const)
        else:  # no matrix, which rows are multiplied by
            fits = not (is_product and place == 1) and shapes.get(value, ())[:-1] == leading
        if not fits:
            return False
    result = node.outputs[0]
    return result is None or shapes.get(result, ())[:-1] == leading


def _is_for_all_rows(node: Node, place: int, constant: Array) -> bool:
    """Whether all rows meet the same of a constant."""
    if node.kind == _OF_BLOCKS:
        return True
    return constant.ndim == 2 if node.kind in _PRODUCTS and place == 1 else constant.ndim < 2


def _move(
    graph: Graph, gather: Node, apart: Collection[Node], known: dict[Value, tuple[int, ...]]
) -> None:
    """Takes the row of what some nodes read that they do not compute themselves."""
    x, indices = gather.inputs
    rows: dict[Value, Value] = {}

    def row_of(value: Value) -> Value:
        found = rows.get(value)
        if found is None:
            result = gather.outputs[0] if value is x else None
            found = rows[value] = result or value.like(value.name)
            axis = gather.attrs.get("axis", 0) % len(known[value])
            known[found] = found.shape = (*known[value][:axis], 1, *known[value][axis + 1 :])
        return found

    read = set(graph.uses())
    computed = {value for node in apart for value in node.outputs if value in read}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node not in apart:
            nodes += [] if node is gather else [node]
            continue
        varying = [value for value in node.inputs if value is not None and value.const is None]
        for value in varying:
            if value not in computed and value not in rows:
                nodes.append(gather.like([value, indices], [row_of(value)]))
        inputs = [row_of(value) if value in varying else value for value in node.inputs]
        made = [row_of(value) if value in computed else None for value in node.outputs]
        nodes.append(node.like(inputs, made))
    graph.nodes = nodes
