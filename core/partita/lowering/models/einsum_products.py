"""Einsum by weights is a MatMul: linear layers of JAX, Keras and some of PyTorch are written so.

Devices pack the weights of a MatMul, choose its arithmetic and take in what follows it; those
without a kernel for Einsum compute it so.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from partita.lowering.graph import Graph, Node, Value
from partita.model.einsum_labels import labels_of

Array = np.ndarray[Any, Any]


def multiply_einsums(graph: Graph) -> None:
    """Puts MatMul in the place of Einsum by a constant where it is one, in place; bodies included.

    The input's labels are rows, then what is summed over; the result's are these rows, then labels
    of the constant alone: ``bsh,hnd->bsnd``, ``...nd,hnd->...h``. All else stays.
    """
    for node in graph.nodes:
        for body in node.graphs():
            multiply_einsums(body)
    graph.nodes = [part for node in graph.nodes for part in _parts(node)]


class _Product(NamedTuple):
    """What such an Einsum is.

    Attributes:
        x: The input, of any rows.
        rows: How many of its dimensions are rows.
        matrix: The constant as (terms, width).
        columns: Sizes of the result's dimensions behind the rows.
    """

    x: Value
    rows: int
    matrix: Array
    columns: list[int]


def _parts(node: Node) -> list[Node]:
    """The nodes that compute what a node does: itself, or those of a product."""
    if node.kind != "Einsum" or len(node.inputs) != 2 or node.result is None:
        return [node]
    place = next((n for n, v in enumerate(node.inputs) if v is not None and v.const is not None), 0)
    product = _product(node, place)
    return [node] if product is None else _nodes(node, product)


def _product(node: Node, place: int) -> _Product | None:
    """The product by the constant in a place of the inputs, if it is one."""
    x, constant = node.inputs[1 - place], node.inputs[place]
    w = None if constant is None else constant.const
    if x is None or x.shape is None or x.const is not None or w is None:
        return None
    if x.dtype != w.dtype or w.dtype.kind not in "fV" or not w.size:  # V: bfloat16
        return None  # a size of 0 says something else in Reshape
    shapes = [x.shape, w.shape] if place else [w.shape, x.shape]
    try:
        terms, result = labels_of(node.attrs["equation"], shapes)
    except ValueError:
        return None  # whoever computes it says why
    of_x, of_w = terms[1 - place], terms[place]
    rows = [label for label in of_x if label not in of_w]
    summed, columns = of_x[len(rows) :], result[len(rows) :]
    if not (rows and summed and columns) or any(len({*own}) < len(own) for own in terms):
        return None
    if of_x[: len(rows)] != rows or result[: len(rows)] != rows:
        return None
    sizes = dict(zip(of_w, w.shape, strict=True))
    inner = tuple(sizes[label] for label in summed)
    if sorted(summed + columns) != sorted(of_w) or x.shape[len(rows) :] != inner:
        return None  # where sizes differ, one of them is 1
    turned = w.transpose([of_w.index(label) for label in summed + columns])
    outer = [sizes[label] for label in columns]
    return _Product(x, len(rows), turned.reshape(math.prod(inner), math.prod(outer)), outer)


def _nodes(node: Node, product: _Product) -> list[Node]:
    """MatMul, between what makes one dimension of several and several of one."""
    x, result, rows = product.x, node.result, (product.x.shape or ())[: product.rows]
    terms, width = product.matrix.shape
    parts = []

    def reshaped(source: Value | None, target: Value | None, sizes: list[int]) -> Node:
        shape = Value.constant(np.asarray([0] * product.rows + sizes, np.int64))
        return node.step("Reshape", [source, shape], target, name=f"{node.name}/Reshape")

    if x.shape != (*rows, terms):
        flat = Value("", x.dtype, (*rows, terms))
        parts.append(reshaped(x, flat, [terms]))
        x = flat
    made = Value("", x.dtype, (*rows, width)) if len(product.columns) > 1 else result
    multiplied = node.step("MatMul", [x, Value.constant(product.matrix)], made)
    multiplied.stand_for([node])
    parts.append(multiplied)
    if made is not result:
        parts.append(reshaped(made, result, product.columns))
    return parts
