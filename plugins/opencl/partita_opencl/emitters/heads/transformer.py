"""onnxruntime's operators of encoders, made of products, sums and normalizations."""

from __future__ import annotations

import math

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.kernel_table import DTypes
from partita_opencl.emitters.elementwise import apply, convert
from partita_opencl.emitters.gemm.matmul import multiplied_matrices
from partita_opencl.emitters.normalization import normalized_rows
from partita_opencl.emitters.operator_table import FLOATS, operator
from partita_opencl.emitters.reduction import softmax_middle, sum_over
from partita_opencl.emitters.selection.indexing import rows_of
from partita_opencl.launches.emitter_kit import Kit
from partita_opencl.launches.tensor_moves import copy_box, expand, transpose

_INT32: DTypes = frozenset({np.dtype(np.int32)})


def _check_heads(node: Node) -> Reason | None:
    for position, name, rank in ((0, "query", 3), (4, "key_padding_mask", 2)):
        value = node.input(position)
        if value is not None and value.shape is not None and len(value.shape) != rank:
            return Reason(ReasonCode.UNSUPPORTED_SHAPE, f"{name} has {len(value.shape)} dimensions")
    if node.input(1) is None or node.input(2) is None or node.input(6) is not None:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "packed inputs or a cache")
    if node.attrs.get("unidirectional", 0):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "unidirectional is 1; takes 0")
    return None


@operator(
    "MultiHeadAttention",
    domain="com.microsoft",
    types={0: FLOATS, 1: FLOATS, 2: FLOATS, 3: FLOATS, 4: _INT32, 5: FLOATS},
    check=_check_heads,
)
def multi_head_attention(
    k: Kit,
    node: Node,
    q: Operand,
    key: Operand,
    value: Operand,
    bias: Operand | None = None,
    padding: Operand | None = None,
    terms: Operand | None = None,
) -> Operand:
    """Attention of all queries to all keys that are not padding."""
    heads = int(node.attrs["num_heads"])
    parts, start = [], 0
    for x in (q, key, value):
        width = x.shape[-1] if x.ndim == 3 else x.shape[1] * x.shape[3]
        parts.append(_heads(k, x, heads, bias, start))
        start += width
    queries, keys, values = parts
    batch, rows, size = q.shape[0], q.shape[1], q.shape[2] // heads
    count = keys.shape[1]
    if keys.shape != (batch * heads, count, size) or values.shape[:2] != keys.shape[:2]:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot attend by shapes {list(q.shape)}, "
            f"{list(key.shape)} and {list(value.shape)} with {heads} heads."
        )
    scale = node.number("scale", 0.0) or 1.0 / math.sqrt(size)
    queries = apply(k, "{0} * {a}", q.dtype, queries, parameters=(scale,))
    scores = multiplied_matrices(k, node, queries, transpose(k, keys, (0, 2, 1)))
    scores = k.view(scores, (batch, heads, rows, count))
    if terms is not None:
        scores = apply(k, "{0} + {1}", q.dtype, scores, expand(k, terms, scores.shape))
    if padding is not None:
        closed = node.number("mask_filter_value", -10000.0)
        mask = k.view(padding, (batch, 1, 1, count))
        scores = apply(k, "({1} ? {0} : {0} + {a})", q.dtype, scores, mask, parameters=(closed,))
    if scores.size:
        scores = softmax_middle(k, scores, count, 1)
    y = multiplied_matrices(k, node, k.view(scores, (batch * heads, rows, count)), values)
    width = values.shape[2]
    y = transpose(k, k.view(y, (batch, heads, rows, width)), (0, 2, 1, 3))
    return k.view(y, (batch, rows, heads * width))


def _heads(k: Kit, x: Operand, heads: int, bias: Operand | None, start: int) -> Operand:
    """(batch * heads, rows, size) of (batch, rows, heads * size) with a part of the bias.

    Keys and values of another attention come as (batch, heads, rows, size), with their bias.
    """
    if x.ndim == 4:
        return k.view(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
    batch, rows, width = x.shape
    if bias is not None:
        part = k.empty((width,), bias.dtype)
        copy_box(k, Box(bias, (1,), start), Box(part, (1,)), (width,))
        x = apply(k, "{0} + {1}", x.dtype, x, part)
    x = transpose(k, k.view(x, (batch, rows, heads, width // heads)), (0, 2, 1, 3))
    return k.view(x, (batch * heads, rows, width // heads))


def _check_tables(node: Node) -> Reason | None:
    if node.attrs.get("mask_index_type", 1) not in (0, 1):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "mask_index_type; takes 0 and 1")
    return None


@operator(
    "EmbedLayerNormalization",
    domain="com.microsoft",
    types={0: _INT32, 1: _INT32, **dict.fromkeys(range(2, 7), FLOATS), 7: _INT32, 8: _INT32},
    check=_check_tables,
    outputs=3,
)
def embed_layer_normalization(
    k: Kit,
    node: Node,
    words: Operand,
    segments: Operand | None,
    word_table: Operand,
    position_table: Operand,
    segment_table: Operand | None,
    *rest: Operand | None,
) -> tuple[Operand, Operand, Operand]:
    """The sum of up to three embeddings, normalized; unmasked words per sentence; the sum."""
    scale, shift, mask, positions = (*rest, None, None, None, None)[:4]
    if scale is None:
        raise OperandError(f"Operation '{node.name}' ({node.model_kind}) has no scale.")
    batch, length = words.shape
    total = rows_of(k, word_table, words)
    width = word_table.shape[1]
    if positions is None:
        rows = k.empty((length, width), position_table.dtype)
        steps = strides_of(rows.shape)
        copy_box(k, Box(position_table, steps), Box(rows, steps), rows.shape)
    else:
        rows = rows_of(k, position_table, positions)
    total = apply(k, "{0} + {1}", total.dtype, total, rows)
    if segments is not None and segment_table is not None:
        total = apply(k, "{0} + {1}", total.dtype, total, rows_of(k, segment_table, segments))
    y = normalized_rows(k, total, scale, shift, node.number("epsilon", 1e-12))
    if mask is None:
        counts = expand(k, k.constant(np.zeros(1, np.int32)), (batch,))
    else:
        truth = apply(k, "({0} != 0)", np.int32, mask)
        counts = sum_over(k, truth, [1])
    return y, convert(k, counts, np.dtype(np.int32)), total
