"""Attention spelled out in products, a softmax and transposes becomes one node."""

from __future__ import annotations

from collections.abc import Sequence

from partita.lowering.fusion.rewriting import Rewriter, fusion_pass, origins, scalar_input
from partita.lowering.graph import Node, Value

_HEADS_OUT = [0, 2, 1, 3]
_HEADS_OUT_TURNED = [0, 2, 3, 1]
_TURNED = [0, 1, 3, 2]


@fusion_pass(60)
def fuse_attention(rewriter: Rewriter) -> None:
    """``softmax(scale * q @ k.T + mask) @ v`` becomes ``partita::Attention``.

    Its inputs are q (batch, queries, heads, size), k and v (batch, keys, heads, size), with heads
    behind the sequence, and the mask, which broadcasts with (batch, heads, queries, keys), or none;
    its output is laid out as q. The transposes that exporters put round the products are taken in.
    A query that the mask keeps from every key by infinities is NaN.
    """
    for node in rewriter.nodes():
        default = 1 if node.version < 13 else -1
        if node.kind == "Softmax" and node.attrs.get("axis", default) in (-1, 3):
            _fuse(rewriter, node)


def _fuse(rewriter: Rewriter, softmax: Node) -> None:
    mix = rewriter.only_user(softmax.outputs[0], "MatMul")
    if mix is None or mix.inputs[0] is not softmax.outputs[0] or mix.inputs[1] is None:
        return
    last = rewriter.only_user(mix.outputs[0], "Transpose")
    found = _masked_scores(rewriter, softmax.inputs[0])
    if last is None or found is None or not _turns(last, _HEADS_OUT):
        return
    product, scale, mask, group = found
    q, before_q = _unturned(rewriter, product.inputs[0], _HEADS_OUT)
    k, before_k = _unturned(rewriter, product.inputs[1], _HEADS_OUT_TURNED)
    v, before_v = _unturned(rewriter, mix.inputs[1], _HEADS_OUT)
    result = last.outputs[0]
    if q is None or k is None or v is None or result is None:
        return
    group = [*group, product, softmax, mix, last]
    if not rewriter.inner(group, result):
        return
    for transpose in (*before_q, *before_k, *before_v):
        if rewriter.inner([*group, transpose], result):
            group.append(transpose)
    fused = Node(
        "Attention",
        [q, k, v, *([] if mask is None else [mask])],
        [result],
        {"scale": scale},
        domain="partita",
        name=mix.name,
        origins=origins(group),
    )
    rewriter.replace(group, fused)


def _masked_scores(
    rewriter: Rewriter, value: Value | None
) -> tuple[Node, float, Value | None, list[Node]] | None:
    """The product of queries and keys, its factor, the mask, and what was passed on the way."""
    plus = rewriter.maker(value, "Add")
    if plus is None:
        found = _scores(rewriter, value)
        return None if found is None else (found[0], found[1], None, found[2])
    for scores, mask in (plus.inputs, plus.inputs[::-1]):
        found = _scores(rewriter, scores)
        if found is not None and mask is not None and mask.shape is not None:
            return (found[0], found[1], mask, [plus, *found[2]]) if len(mask.shape) <= 4 else None
    return None


def _scores(rewriter: Rewriter, value: Value | None) -> tuple[Node, float, list[Node]] | None:
    """The product of queries and keys, its factor, and the node that multiplies."""
    node = rewriter.maker(value, "Mul", "Div", "MatMul")
    if node is None or node.kind == "MatMul":
        return None if node is None else (node, 1.0, [])
    scaled = scalar_input(node)
    if scaled is None or (node.kind == "Div" and node.inputs[0] is not scaled[0]):
        return None
    product = rewriter.maker(scaled[0], "MatMul")
    if product is None or not scaled[1]:
        return None
    return product, 1 / scaled[1] if node.kind == "Div" else scaled[1], [node]


def _unturned(
    rewriter: Rewriter, value: Value | None, order: Sequence[int]
) -> tuple[Value | None, list[Node]]:
    """The value before its transposition by `order`, which may be in two steps; and the steps."""
    node = rewriter.maker(value, "Transpose")
    if node is None:
        return None, []
    if _turns(node, order):
        return node.inputs[0], [node]
    first = rewriter.maker(node.inputs[0], "Transpose")
    if order == _HEADS_OUT_TURNED and first is not None and _turns(node, _TURNED):
        return (first.inputs[0], [node, first]) if _turns(first, _HEADS_OUT) else (None, [])
    return None, []


def _turns(node: Node, order: Sequence[int]) -> bool:
    return list(node.attrs.get("perm", ())) == list(order)
