"""Results of matrix products and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.lowering.geometry.broadcasting import broadcast, is_repeated_to, sizes_of_labels
from partita.lowering.geometry.heads_first import heads_first
from partita.lowering.graph import Node
from partita.lowering.shapes.results.rule import ResultRules
from partita.model.einsum_labels import labels_of

PRODUCT_RESULTS = ResultRules()


@PRODUCT_RESULTS.shape("MatMul", "partita::MatMul")
def _matmul(node: Node, operands: Any) -> Sequence[int] | None:
    x, w = operands[0].shape, operands[1].shape
    if len(x) < 2 or len(w) < 2 or x[-1] != w[-2]:
        return None
    return (*broadcast(x[:-2], w[:-2]), x[-2], w[-1])


@PRODUCT_RESULTS.shape("Einsum")
def _einsum(node: Node, operands: Any) -> Sequence[int]:
    shapes = [operand.shape for operand in operands]
    terms, output = labels_of(node.attrs["equation"], shapes)
    sizes = sizes_of_labels(terms, shapes)
    return [sizes[label] for label in output]


@PRODUCT_RESULTS.shape("Gemm")
def _gemm(node: Node, operands: Any) -> Sequence[int]:
    x, w = operands[0].shape, operands[1].shape
    flip_x, flip_w = node.attrs.get("transA", 0), node.attrs.get("transB", 0)
    return x[1 if flip_x else 0], w[0 if flip_w else 1]


@PRODUCT_RESULTS.shape("partita::Attention")
def _attention(node: Node, operands: Any) -> Sequence[int] | None:
    first = heads_first(node)
    shapes = [operand.shape for operand in operands[:3]]
    if any(len(shape) != 4 for shape in shapes):
        return None
    q, k, v = (
        (x[0], x[2], x[1], x[3]) if moved else x
        for x, moved in zip(shapes, first.inputs, strict=True)
    )
    mask = operands[3].shape if len(operands) > 3 and operands[3] is not None else ()
    around = (1,) * (4 - len(mask)) + mask
    same = q[0] == k[0] == v[0] and q[2] == k[2] == v[2] and k[1] == v[1]
    fits = len(around) == 4 and all(map(is_repeated_to, around, (q[0], q[2], q[1], k[1])))
    if not same or not fits:
        return None
    return (q[0], q[2], q[1], v[3]) if first.result else (*q[:3], v[3])
