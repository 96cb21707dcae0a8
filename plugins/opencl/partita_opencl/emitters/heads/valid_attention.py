"""Attention of the standard over a cache of fixed capacity, whose valid part is given by lengths.

TensorScatter brings new keys and values into such a cache, and `nonpad_kv_seqlen` of Attention says
how many there are. Keys behind them are not read.
"""

from __future__ import annotations

import math

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError
from partita.lowering import Node, Operand
from partita.lowering.kernel_table import INT64, refused_attribute
from partita_opencl.emitters.elementwise import convert
from partita_opencl.emitters.heads.cache_attention import attend
from partita_opencl.emitters.heads.cache_operands import MOST_ELEMENTS, Inputs, Sizes
from partita_opencl.emitters.operator_table import FLOATS, operator
from partita_opencl.launches.emitter_kit import Kit
from partita_opencl.launches.tensor_moves import expand, transpose

_HEADS_BEHIND = (0, 2, 1, 3)

_MOST_KEYS = 1 << 30
"""More than any cache holds; a wider window is none."""


def _check(node: Node) -> Reason | None:
    if node.input(6) is None:
        return Reason(ReasonCode.UNSUPPORTED_OP, "no kernel for Attention without nonpad_kv_seqlen")
    if node.input(4) is not None or node.input(5) is not None:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "past keys beside nonpad_kv_seqlen")
    due = {"right_window_size": -1}
    if not node.attrs.get("is_causal", 0):
        due["left_window_size"] = -1
    if reason := refused_attribute(node, due):
        return reason
    key, value, mask = (node.input(place) for place in (1, 2, 3))
    for name, x in (("keys", key), ("values", value)):
        if x is not None and x.shape is not None and len(x.shape) != 4:
            return Reason(ReasonCode.UNSUPPORTED_SHAPE, f"{name} of {len(x.shape)} dimensions")
    sizes = [None if x is None or not x.shape else x.shape[-1] for x in (key, value, mask)]
    places = None if key is None or not key.shape else key.shape[2]
    if sizes[0] != sizes[1]:
        return Reason(ReasonCode.UNSUPPORTED_SHAPE, "keys and values of different sizes")
    if isinstance(sizes[0], int) and sizes[0] > MOST_ELEMENTS:
        return Reason(ReasonCode.UNSUPPORTED_SHAPE, f"heads of {sizes[0]} elements")
    if isinstance(sizes[2], int) and isinstance(places, int) and sizes[2] not in (1, places):
        return Reason(ReasonCode.UNSUPPORTED_SHAPE, f"a mask for {sizes[2]} of {places} keys")
    return None


@operator(
    "Attention",
    types={**dict.fromkeys(range(6), FLOATS), 6: INT64},
    check=_check,
    since=24,
)
def attention_over_valid_keys(
    k: Kit, node: Node, q: Operand, key: Operand, value: Operand, *others: Operand | None
) -> Operand:
    """Attention of queries over as many keys of each batch as lengths say."""
    mask, _, _, lengths = others[:4]
    if key.ndim != 4 or value.shape != key.shape or q.ndim not in (3, 4) or lengths is None:
        raise _unfit(node, q, key, value)
    batch, heads, places, size = key.shape
    by_token, queries = _by_token(k, node, q)
    tokens, width = by_token.shape[1:]
    group = queries // max(heads, 1)
    sizes = Sizes(batch, heads, group, tokens, size, places, 0, packed=False, row=size)
    if queries % max(heads, 1) or width != queries * size or by_token.shape[0] != batch:
        raise _unfit(node, q, key, value)
    if lengths.shape != (batch,) or not 0 < size <= MOST_ELEMENTS or places >= 2**31:
        raise _unfit(node, q, key, lengths)
    y = k.empty(by_token.shape, q.dtype)
    if y.size and key.size:
        bias = None if mask is None else _bias(k, node, mask, (batch, queries, tokens, places))
        value = convert(k, value, key.dtype)
        inputs = Inputs(by_token, None, None, key, value, lengths, lengths, bias=bias)
        attend(k, _as_grouped(node, size), sizes, inputs, (key, value), y, TOLD_BY_LENGTHS=None)
    if q.ndim == 3:
        return y
    apart = k.view(y, (batch, tokens, queries, size))
    return k.view(y, q.shape) if tokens == 1 else transpose(k, apart, _HEADS_BEHIND)


def _by_token(k: Kit, node: Node, q: Operand) -> tuple[Operand, int]:
    """Queries as (batch, token, features), and how many heads they have."""
    if q.ndim == 3:
        return q, int(node.attrs.get("q_num_heads", 0)) or 1
    batch, heads, tokens, size = q.shape
    by_token = q if tokens == 1 else transpose(k, q, _HEADS_BEHIND)
    return k.view(by_token, (batch, tokens, heads * size)), heads


def _bias(k: Kit, node: Node, mask: Operand, scores: tuple[int, ...]) -> Operand:
    """A mask with a row for each query and a number for each key."""
    shape = (1,) * (4 - mask.ndim) + mask.shape
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, scores, strict=True)):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot add a mask of shape "
            f"{list(mask.shape)} to scores of shape {list(scores)}."
        )
    return expand(k, k.view(mask, shape), (*shape[:2], *scores[2:]))


def _as_grouped(node: Node, size: int) -> Node:
    """The attributes in the words of GroupQueryAttention."""
    left = int(node.attrs.get("left_window_size", -1))
    attrs = {
        "causal": int(node.attrs.get("is_causal", 0)),
        "local_window_size": left + 1 if 0 <= left < _MOST_KEYS else -1,
        "scale": node.attrs.get("scale", 1.0 / math.sqrt(size)),
        "softcap": node.attrs.get("softcap", 0.0),
    }
    return node.like(attrs=attrs)


def _unfit(node: Node, *operands: Operand) -> CompileError:
    shapes = ", ".join(str(list(x.shape)) for x in operands)
    return OperandError(
        f"Operation '{node.name}' ({node.model_kind}) has inputs of shapes {shapes}, which do not "
        "fit each other."
    )
