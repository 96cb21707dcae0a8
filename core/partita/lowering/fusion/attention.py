"""Attention spelled out in products, a softmax and transposes becomes one node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.lowering.fusion.rewriting import (
    Rewriter,
    fusion_pass,
    origins,
    scalar,
    scalar_input,
)
from partita.lowering.graph import Node, Value

_HEADS_OUT = [0, 2, 1, 3]
_HEADS_OUT_TRANSPOSED = [0, 2, 3, 1]
_TRANSPOSED = [0, 1, 3, 2]


@fusion_pass(60)
def fuse_attention(rewriter: Rewriter) -> None:
    """``softmax(scale * q @ k.T + mask) @ v`` becomes ``partita::Attention``.

    Its inputs are q (batch, queries, heads, size), k and v (batch, keys, heads, size), with heads
    behind the sequence, and the mask, which broadcasts with (batch, heads, queries, keys), or none;
    its output is laid out as q. The transposes that exporters put round the products are taken in,
    and factors of q and k. What is not transposed has its heads before the sequence; attribute
    `heads_first` then holds for q, k, v and the output whether it has.
    A query that the mask keeps from every key by infinities is NaN; with attribute `nan_is_zero`
    what attends by NaN is 0, as PyTorch spells it and as Softmax with `closed_is_zero` has it.
    """
    for node in rewriter.nodes():
        default = 1 if node.version < 13 else -1
        if node.kind == "Softmax" and node.attrs.get("axis", default) in (-1, 3):
            _fuse(rewriter, node)


@fusion_pass(55)
def move_heads_last(rewriter: Rewriter) -> None:
    """Matrices that are transposed in a row, then laid out by heads, are laid out before that.

    So exporters spell the keys of models that keep batch and heads as one axis.
    """
    for node in rewriter.nodes():
        transpose = rewriter.maker(node.input(0), "Transpose") if node.kind == "Reshape" else None
        if (
            transpose is None
            or not _permutes(transpose, [0, 2, 1])
            or _transposed_matrices(rewriter, node)[0]
        ):
            continue
        source, transposed, result = transpose.inputs[0], transpose.outputs[0], node.result
        shapes = [() if x is None or x.shape is None else x.shape for x in (source, result)]
        before, after = (tuple(dim for dim in shape if isinstance(dim, int)) for shape in shapes)
        is_layout = (len(before), len(after)) == (3, 4) and after[2:] == before[:0:-1]
        if (
            transposed is None
            or rewriter.only_user(transposed) is not node
            or not is_layout
            or 0 in after
        ):
            continue
        transposed.name, transposed.shape = "", (*after[:2], *before[1:])
        sizes = Value.constant(np.asarray(transposed.shape, np.int64))
        rewriter.replace([transpose], node.like([source, sizes], [transposed]))
        rewriter.replace([node], transpose.like([transposed], [result], {"perm": _TRANSPOSED}))


def _fuse(rewriter: Rewriter, softmax: Node) -> None:
    weights, cleared = _without_nan(rewriter, softmax)
    mix = rewriter.only_user(weights, "MatMul")
    if mix is None or mix.inputs[0] is not weights or mix.inputs[1] is None:
        return
    found = _masked_scores(rewriter, softmax.inputs[0])
    if found is None:
        return
    product, scale, mask, group = found
    q, scale, before_q = _unscaled(rewriter, product.inputs[0], scale)
    k, scale, before_k = _unscaled(rewriter, product.inputs[1], scale)
    k, transposed_k = _keys(rewriter, k)
    q, transposed_q = _heads_last(rewriter, q)
    k, moved_k = _heads_last(rewriter, k, _HEADS_OUT if transposed_k else _HEADS_OUT_TRANSPOSED)
    v, transposed_v = _heads_last(rewriter, mix.inputs[1])
    result, after = _result(rewriter, mix)
    first = [not steps for steps in (transposed_q, moved_k, transposed_v, after)]
    group = [*group, product, softmax, *cleared, mix, *after]
    if q is None or k is None or v is None or result is None or not rewriter.inner(group, result):
        return
    for steps in (before_q + transposed_q, before_k + transposed_k + moved_k, transposed_v):
        for step in steps:
            if rewriter.inner([*group, step], result):
                group.append(step)
    attrs = {"scale": scale} | ({"heads_first": first} if any(first) else {})
    fused = Node(
        "Attention",
        [q, k, v, *([] if mask is None else [mask])],
        [result],
        attrs | ({"nan_is_zero": 1} if cleared or softmax.attrs.get("closed_is_zero") else {}),
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


def _without_nan(rewriter: Rewriter, softmax: Node) -> tuple[Value | None, list[Node]]:
    """A softmax with 0 where it is NaN, if so it goes on, and the nodes that say so."""
    value = softmax.outputs[0]
    readers = rewriter.readers(value)
    test = next((node for node in readers if node.kind == "IsNaN"), None)
    choice = None if test is None else rewriter.only_user(test.outputs[0], "Where")
    if test is None or choice is None or set(readers) != {test, choice}:
        return value, []
    condition, zero, other = choice.inputs
    if condition is not test.outputs[0] or scalar(zero) != 0 or other is not value:
        return value, []
    return choice.outputs[0], [test, choice]


def _unscaled(
    rewriter: Rewriter, value: Value | None, scale: float
) -> tuple[Value | None, float, list[Node]]:
    """The value before a factor, `scale` with that factor, and the node that multiplies."""
    node = rewriter.maker(value, "Mul")
    scaled = None if node is None else scalar_input(node)
    if node is None or scaled is None:
        return value, scale, []
    return scaled[0], scale * scaled[1], [node]


def _keys(rewriter: Rewriter, value: Value | None) -> tuple[Value | None, list[Node]]:
    """Keys (batch, ., ., size) before their last two axes were exchanged, and the nodes that did.

    Heads may stay where they were, so that this makes one of two transpositions.
    """
    node = rewriter.maker(value, "Transpose", "Reshape")
    if node is None:
        return None, []
    if node.kind == "Reshape":
        return _transposed_matrices(rewriter, node)
    if _permutes(node, _TRANSPOSED):
        return node.inputs[0], [node]
    return (value, []) if _permutes(node, _HEADS_OUT_TRANSPOSED) else (None, [])


def _transposed_matrices(rewriter: Rewriter, last: Node) -> tuple[Value | None, list[Node]]:
    """What `last` reshapes back after its matrices, all in a row, were transposed."""
    transpose = rewriter.maker(last.inputs[0], "Transpose")
    first = None if transpose is None else rewriter.maker(transpose.inputs[0], "Reshape")
    if transpose is None or first is None or not _permutes(transpose, [0, 2, 1]):
        return None, []
    source, row, result = first.inputs[0], first.outputs[0], last.outputs[0]
    shapes = [None if x is None else x.shape for x in (source, row, result)]
    before, between, after = (() if x is None or None in x else tuple(x) for x in shapes)
    if len(before) != 4 or len(between) != 3 or before[2:] != between[1:]:
        return None, []
    if after != (*before[:2], before[3], before[2]):
        return None, []
    return source, [last, transpose, first]


def _heads_last(
    rewriter: Rewriter, value: Value | None, order: Sequence[int] = _HEADS_OUT
) -> tuple[Value | None, list[Node]]:
    """The value before heads came before the sequence by `order`, and the node that moved them.

    Or the value as it is; `None` if it may have other axes.
    """
    node = rewriter.maker(value, "Transpose")
    if node is not None and _permutes(node, order):
        return node.inputs[0], [node]
    is_of_heads = value is not None and value.shape is not None and len(value.shape) == 4
    return (value if is_of_heads else None), []


def _result(rewriter: Rewriter, mix: Node) -> tuple[Value | None, list[Node]]:
    """What comes of the second product when heads are moved behind the sequence, and how.

    Nothing comes before that but reshapes to the same shape.
    """
    steps: list[Node] = []
    value = mix.outputs[0]
    user = rewriter.only_user(value, "Transpose", "Reshape")
    while user is not None and user.kind == "Reshape" and _keeps_shape(rewriter, user):
        steps.append(user)
        value = user.outputs[0]
        user = rewriter.only_user(value, "Transpose", "Reshape")
    if user is not None and _permutes(user, _HEADS_OUT):
        return user.outputs[0], [*steps, user]
    return mix.outputs[0], []


def _keeps_shape(rewriter: Rewriter, node: Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    return source is not None and result is not None and rewriter.same_shape(source, result)


def _permutes(node: Node, order: Sequence[int]) -> bool:
    return node.kind == "Transpose" and list(node.attrs.get("perm", ())) == list(order)
