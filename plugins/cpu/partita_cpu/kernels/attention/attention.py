"""Attention operators of ONNX and of onnxruntime."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.geometry.heads_first import heads_first
from partita.lowering.kernel_table import refused_choice
from partita_cpu.kernels.attention.attention_rows import NO_STAGE, Heads, Masking, attend
from partita_cpu.kernels.attention.valid_keys import attend_valid_keys, has_valid_keys
from partita_cpu.kernels.elementwise.cast import emit_cast
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.linalg.epilogue import BIAS_PER_COLUMN, finish
from partita_cpu.kernels.linalg.matmul import product
from partita_cpu.kernels.movement.rearrange import expanded
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.operator_table import ALL_FLOATS, BOOL, INT64, INTS, kernel

_INT32 = frozenset({np.dtype(np.int32)})


def _heads(b: Builder, x: Operand, count: int | None) -> Heads:
    """(B, H, S, D) as it is; (B, S, H x D) with heads as an axis of their own."""
    if x.ndim == 4:
        return Heads(x, x.shape[1])
    batch, s, width = x.shape
    if not count or width % count:
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}): {width} features do not fall into "
            f"{count} heads."
        )
    return Heads(b.view(x, (batch, s, count, width // count)), count, last=True)


def _joined(b: Builder, past: Operand | None, x: Heads, wanted: bool) -> Heads:
    """The past and the new part one after another, as (B, H, S, D); `x` if there is no past."""
    if past is None and not (wanted and x.last):
        return x
    before = 0 if past is None else past.shape[2]
    batch = x.tensor.shape[0]
    shape = (batch, x.count, before + x.length, x.size)
    y = b.empty(shape, x.tensor.dtype)
    steps = strides_of(shape)
    if past is not None:
        if past.shape != (batch, x.count, before, x.size):
            raise OperandError(
                f"Operation '{b.node.name}' ({b.node.model_kind}): the past is of shape "
                f"{list(past.shape)}, {[batch, x.count, before, x.size]} is needed."
            )
        copy_box(b, Box(past, strides_of(past.shape)), Box(y, steps), past.shape)
    source = strides_of(x.tensor.shape)
    if x.last:
        source[1], source[2] = source[2], source[1]
    dims = (batch, x.count, x.length, x.size)
    copy_box(b, Box(x.tensor, source), Box(y, steps, before * x.size), dims)
    return Heads(y, x.count)


def _additive(b: Builder, mask: Operand | None, dtype: Any) -> Operand | None:
    """A mask to be added; a mask of bools becomes 0 where it is true and -inf elsewhere."""
    if mask is None or mask.dtype != np.bool_:
        return None if mask is None else emit_cast(b, mask, dtype)
    y = b.empty(mask.shape, dtype)
    b.call_numpy(_open_or_closed, mask, y)
    return y


def _open_or_closed(mask: Array, y: Array) -> None:
    y[...] = np.where(mask, 0.0, -math.inf)


def _check_modes(node: Node) -> Reason | None:
    return refused_choice(node, "qk_matmul_output_mode", 0, 1, 2, 3)


_MOST_KEYS = 1 << 40
"""More than any memory holds."""


def _window(node: Node, name: str) -> int:
    """How many keys a query sees on a side; -1 for all, of which no window is too wide."""
    width = int(node.attrs.get(name, -1))
    return -1 if width >= _MOST_KEYS else width


@kernel(
    "Attention",
    dtypes={
        0: ALL_FLOATS,
        1: ALL_FLOATS,
        2: ALL_FLOATS,
        3: ALL_FLOATS | INTS | BOOL,
        4: ALL_FLOATS,
        5: ALL_FLOATS,
        6: INT64,
    },
    check=_check_modes,
    since=23,
)
def attention(
    b: Builder,
    node: Node,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
    past_key: Operand | None = None,
    past_value: Operand | None = None,
    lengths: Operand | None = None,
) -> tuple[Operand | None, ...]:
    """Attention of opset 23 on: masks, caches, grouped heads, windows, soft caps."""
    heads = _all_heads(b, node, q, k, v)
    masking = _masking(node, mask, past_key, lengths)
    if past_key is None and has_valid_keys(*heads, masking, _stage(node)):
        masking = replace(masking, mask=_additive(b, mask, np.dtype(np.float32)))
        y = attend_valid_keys(b, *heads, masking, node.attrs.get("scale"), _cap(node))
        return _as_queries(b, y, q), k, v, None
    return _attention_of_all(b, node, q, k, v, mask, past_key, past_value, lengths)  # type: ignore[no-any-return]


@through_float32
def _attention_of_all(
    b: Builder,
    node: Node,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None,
    past_key: Operand | None,
    past_value: Operand | None,
    lengths: Operand | None,
) -> tuple[Operand | None, ...]:
    """Attention over past and new keys, all of them.

    Args:
        b: The builder.
        node: The operation.
        q: Queries.
        k: New keys.
        v: New values.
        mask: Added to the scores, or which of them there are.
        past_key: Keys of tokens before.
        past_value: Their values.
        lengths: For each sequence, how many keys there are.
    """
    queries, keys, values = _all_heads(b, node, q, k, v)
    keys = _joined(b, past_key, keys, _is_used(node, 1))
    values = _joined(b, past_value, values, _is_used(node, 2))
    masking = _masking(node, _additive(b, mask, q.dtype), past_key, lengths)
    of_scores = node.attrs.get("scale"), _cap(node), _stage(node)
    y, scores = attend(b, queries, keys, values, masking, *of_scores)
    return _as_queries(b, y, q), keys.tensor, values.tensor, scores


def _all_heads(
    b: Builder, node: Node, q: Operand, k: Operand, v: Operand
) -> tuple[Heads, Heads, Heads]:
    """Heads of queries, keys and values."""
    kv_heads = node.attrs.get("kv_num_heads")
    queries = _heads(b, q, node.attrs.get("q_num_heads"))
    return queries, _heads(b, k, kv_heads), _heads(b, v, kv_heads)


def _masking(
    node: Node, mask: Operand | None, past_key: Operand | None, lengths: Operand | None
) -> Masking:
    """Which keys queries see, by inputs and attributes."""
    return Masking(
        mask,
        lengths,
        0 if past_key is None else past_key.shape[2],
        bool(node.attrs.get("is_causal", 0)),
        _window(node, "left_window_size"),
        _window(node, "right_window_size"),
    )


def _stage(node: Node) -> int:
    """Which scores are an output, if any."""
    mode = int(node.attrs.get("qk_matmul_output_mode", 0))
    return mode if _is_used(node, 3) else NO_STAGE


def _cap(node: Node) -> float:
    return float(node.attrs.get("softcap", 0.0))


def _as_queries(b: Builder, y: Operand, q: Operand) -> Operand:
    """A result of (..., heads, size) as queries have it, which may have both side by side."""
    return b.view(y, (*y.shape[:2], y.shape[2] * y.shape[3])) if q.ndim == 3 else y


@kernel("Attention", domain="partita", dtypes=ALL_FLOATS)
@through_float32
def plain_attention(
    b: Builder,
    node: Node,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
) -> Operand:
    """What fusion makes of attention spelled out; see `fuse_attention`."""
    *first, turned = heads_first(node)
    parts = [
        Heads(x, x.shape[1 if moved else 2], last=not moved)
        for x, moved in zip((q, k, v), first, strict=True)
    ]
    around = (1, 1, 1, 1) if mask is None else (1,) * (4 - mask.ndim) + mask.shape
    batch, heads, queries, keys = broadcast(
        (q.shape[0], parts[0].count, parts[0].length, 1),
        *((x.tensor.shape[0], x.count, 1, x.length) for x in parts[1:]),
        around,
    )
    qs, ks, vs = (
        replace(x, tensor=expanded(b, x.tensor, x.shape_of(batch, heads, length)), count=heads)
        for x, length in zip(parts, (queries, keys, keys), strict=True)
    )
    if mask is not None:
        mask = expanded(b, mask, (*around[:3], keys))
    nan_is_zero = bool(node.attrs.get("nan_is_zero", 0))
    masking = Masking(mask, closed_is_zero=False, nan_is_zero=nan_is_zero)
    y, _ = attend(b, qs, ks, vs, masking, node.attrs["scale"], last=not turned)
    return y


def _is_used(node: Node, output: int) -> bool:
    return len(node.outputs) > output and node.outputs[output] is not None


def _check_multi_head(node: Node) -> Reason | None:
    for position, name, ranks in ((0, "query", (3,)), (4, "key_padding_mask", (1, 2, 3))):
        value = node.input(position)
        if value is not None and value.shape is not None and len(value.shape) not in ranks:
            return Reason(ReasonCode.UNSUPPORTED_SHAPE, f"{name} has {len(value.shape)} dimensions")
    if node.input(1) is None or node.input(2) is None or len(node.inputs) > 8:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "packed inputs or a shared cache")
    return None


_MULTI_HEAD_TYPES = dict.fromkeys((0, 1, 2, 3, 5, 6, 7), ALL_FLOATS) | {4: _INT32}


@kernel(
    "MultiHeadAttention",
    domain="com.microsoft",
    dtypes=_MULTI_HEAD_TYPES,
    check=_check_multi_head,
)
@through_float32
def multi_head_attention(
    b: Builder,
    node: Node,
    q: Operand,
    k: Operand,
    v: Operand,
    bias: Operand | None = None,
    padding: Operand | None = None,
    terms: Operand | None = None,
    past_key: Operand | None = None,
    past_value: Operand | None = None,
) -> tuple[Operand | None, ...]:
    """Attention of separate query, key and value, as onnxruntime has it.

    Where it is unidirectional, the last query sees all keys, however many there are.
    """
    count = int(node.attrs["num_heads"])
    parts = [q, k, v]
    if bias is not None:
        widths = [x.shape[-1] if x.ndim == 3 else x.shape[1] * x.shape[3] for x in parts]
        start = 0
        for i, (x, width) in enumerate(zip(parts, widths, strict=True)):
            if x.ndim == 3:
                parts[i] = _with_bias(b, x, bias, start)
            start += width
    queries, keys, values = (_heads(b, x, count) for x in parts)
    keys = _joined(b, past_key, keys, _is_used(node, 1))
    values = _joined(b, past_value, values, _is_used(node, 2))
    past = 0 if past_key is None else past_key.shape[2]
    mask = _padding_mask(b, node, padding, terms, queries, keys, past)
    is_causal = bool(node.attrs.get("unidirectional", 0)) and queries.length > 1
    if is_causal and keys.length > past + queries.length:
        mask, is_causal = _all_for_the_last(b, mask, queries, keys, past), False
    masking = Masking(mask, None, past, is_causal)
    y, _ = attend(b, queries, keys, values, masking, node.attrs.get("scale") or None)
    y = b.view(y, (*y.shape[:2], y.shape[2] * y.shape[3]))
    return y, keys.tensor, values.tensor


def _with_bias(b: Builder, x: Operand, bias: Operand, start: int) -> Operand:
    """`x` plus the part of the bias that starts at `start`."""
    width = x.shape[-1]
    part, y = b.empty((width,), x.dtype), b.empty(x.shape, x.dtype)
    copy_box(b, Box(bias, (1,), start), Box(part, (1,)), (width,))
    b.call_numpy(np.copyto, y, x)
    finish(b, y, width, part, BIAS_PER_COLUMN, None, None)
    return y


def _padding_mask(
    b: Builder,
    node: Node,
    padding: Operand | None,
    terms: Operand | None,
    q: Heads,
    k: Heads,
    past: int,
) -> Operand | None:
    """Numbers to add to the scores: `terms`, and a large negative one where keys are padding.

    Args:
        b: The builder.
        node: The operation.
        padding: Which keys there are, as MultiHeadAttention has it; None for all.
        terms: Added to the scores.
        q: Queries.
        k: Keys.
        past: How many keys are of tokens before.
    """
    if padding is None:
        return terms
    batch = q.tensor.shape[0]
    shape = (batch, q.count, q.length, k.length) if terms is not None else None
    if shape is None:
        shape = (batch, 1, q.length if padding.ndim == 3 else 1, k.length)
    y = b.empty(shape, q.tensor.dtype)
    low = node.number("mask_filter_value", -10000.0)
    b.call_numpy(_fill_mask, padding, terms, y, low)
    return y


def _all_for_the_last(b: Builder, mask: Operand | None, q: Heads, k: Heads, past: int) -> Operand:
    """A mask by which queries see no later keys, but the last one sees them all."""
    batch, heads = (1, 1) if mask is None else mask.shape[:2]
    y = b.empty((batch, heads, q.length, k.length), q.tensor.dtype)
    b.call_numpy(_fill_causal, mask, y, past)
    return y


def _fill_causal(mask: Array | None, y: Array, past: int) -> None:
    """What is added to scores, 0 without a `mask`, and -inf where a key is later than its query."""
    y[...] = 0.0 if mask is None else mask
    queries, keys = y.shape[2:]
    later = np.arange(keys) > past + np.arange(queries - 1)[:, None]
    y[:, :, :-1][..., later] = -np.inf


def _fill_mask(padding: Array, terms: Array | None, y: Array, low: float) -> None:
    """Where `padding` is 0, or beyond the lengths it gives, `low`; and `terms` on top."""
    keys = y.shape[-1]
    if padding.ndim == 1:
        is_open = np.arange(keys) < padding[:, None, None, None]
    elif padding.ndim == 2:
        is_open = padding[:, None, None, :] != 0
    else:
        is_open = padding[:, None, :, :] != 0
    y[...] = np.where(is_open, 0.0, low)
    if terms is not None:
        y += terms


def _check_packed(node: Node) -> Reason | None:
    if node.attrs.get("do_rotary", 0) or len(node.inputs) > 6:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "rotary embedding or a shared cache")
    bias, mask = node.input(2), node.input(3)
    if bias is None:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "no bias")
    if mask is not None and mask.shape is not None and len(mask.shape) not in (2, 3):
        return Reason(ReasonCode.UNSUPPORTED_SHAPE, f"mask of {len(mask.shape)} dimensions")
    return None


@kernel(
    "Attention",
    domain="com.microsoft",
    dtypes={0: ALL_FLOATS, 1: ALL_FLOATS, 2: ALL_FLOATS, 3: _INT32, 4: ALL_FLOATS, 5: ALL_FLOATS},
    check=_check_packed,
)
@through_float32
def packed_attention(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand,
    mask: Operand | None = None,
    past: Operand | None = None,
    terms: Operand | None = None,
) -> tuple[Operand | None, ...]:
    """Attention that first projects its input to query, key and value."""
    count = int(node.attrs["num_heads"])
    third = w.shape[1] // 3
    sizes = node.attrs.get("qkv_hidden_sizes") or [third, third, third]
    projected = product(b, x, w)
    finish(b, projected, w.shape[1], bias, BIAS_PER_COLUMN, None, None)
    batch, s, _ = x.shape
    parts, start = [], 0
    for width in sizes:
        part = b.empty((batch, s, width), x.dtype)
        steps = (w.shape[1], 1)
        copy_box(b, Box(projected, steps, start), Box(part, (width, 1)), (batch * s, width))
        parts.append(_heads(b, part, count))
        start += width
    queries, keys, values = parts
    before = 0 if past is None else past.shape[3]
    keys = _joined(b, _half(b, past, 0), keys, _is_used(node, 1))
    values = _joined(b, _half(b, past, 1), values, _is_used(node, 1))
    total = _padding_mask(b, node, mask, terms, queries, keys, before)
    masking = Masking(total, None, before, bool(node.attrs.get("unidirectional", 0)))
    y, _ = attend(b, queries, keys, values, masking, node.attrs.get("scale") or None)
    present = _stacked(b, keys.tensor, values.tensor) if _is_used(node, 1) else None
    return b.view(y, (batch, s, sizes[2])), present


def _half(b: Builder, pair: Operand | None, which: int) -> Operand | None:
    if pair is None:
        return None
    shape = pair.shape[1:]
    y = b.empty(shape, pair.dtype)
    copy_box(b, Box(pair, (1,), which * y.size), Box(y, (1,)), (y.size,))
    return y


def _stacked(b: Builder, first: Operand, second: Operand) -> Operand:
    y = b.empty((2, *first.shape), first.dtype)
    for which, x in enumerate((first, second)):
        copy_box(b, Box(x, (1,)), Box(y, (1,), which * x.size), (x.size,))
    return y
