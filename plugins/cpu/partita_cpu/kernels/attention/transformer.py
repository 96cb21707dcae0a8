"""Small fused operators of transformers, as onnxruntime's optimizer makes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Activation, ActivationCode, Array, Builder, Node, Operand
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.linalg.epilogue import BIAS_PER_COLUMN, finish
from partita_cpu.kernels.movement.index_steps import checked_index, gathered
from partita_cpu.kernels.normalization.norm_loops import Normalized, normalize_rows
from partita_cpu.kernels.operator_table import ALL_FLOATS, kernel, with_inputs

_INT32 = frozenset({np.dtype(np.int32)})


@kernel("BiasGelu", "FastGelu", domain="com.microsoft", dtypes=ALL_FLOATS)
@through_float32
def bias_gelu(b: Builder, node: Node, x: Operand, bias: Operand | None = None) -> Operand:
    """Gelu of a sum with a bias per column; FastGelu goes through tanh."""
    code = ActivationCode.GELU if node.op_type == "BiasGelu" else ActivationCode.GELU_TANH
    y = b.empty(x.shape, x.dtype)
    b.call_numpy(np.copyto, y, x)
    inner = x.shape[-1] if x.ndim else 1
    finish(b, y, inner, bias, BIAS_PER_COLUMN, None, Activation(code))
    return y


class EmbeddingInputs(NamedTuple):
    """Inputs of EmbedLayerNormalization."""

    words: Operand
    segments: Operand | None
    word_table: Operand
    position_table: Operand
    segment_table: Operand | None
    scale: Operand
    bias: Operand
    mask: Operand | None = None
    positions: Operand | None = None


@kernel(
    "EmbedLayerNormalization",
    domain="com.microsoft",
    dtypes={
        0: _INT32,
        1: _INT32,
        2: ALL_FLOATS,
        3: ALL_FLOATS,
        4: ALL_FLOATS,
        5: ALL_FLOATS,
        6: ALL_FLOATS,
        7: _INT32,
        8: _INT32,
    },
)
@through_float32
@with_inputs(EmbeddingInputs)
def embed_layer_normalization(
    b: Builder, node: Node, inputs: EmbeddingInputs
) -> tuple[Operand, Operand, Operand]:
    """The sum of up to three embeddings, normalized; unmasked words per sentence; the sum."""
    words, segments, word_table, position_table, segment_table, scale, bias, *rest = inputs
    mask, positions = rest
    batch, length = words.shape
    width = word_table.shape[1]
    if positions is None:
        positions = b.table((batch, length), np.int32, _counted, batch, length)
    elif positions.shape[0] != batch:
        positions = b.constant(np.tile(b.value(positions), (batch, 1)))
    total = b.empty((batch, length, width), word_table.dtype)
    parts = [(words, word_table), (positions, position_table)]
    if segments is not None and segment_table is not None:
        parts.append((segments, segment_table))
    rows = [gathered(b, t, checked_index(b, i, t.shape[0]), 0) for i, t in parts]
    b.call_numpy(np.add, rows[0], rows[1], total)
    if len(rows) > 2:
        b.call_numpy(np.add, total, rows[2], total)
    y = b.empty(total.shape, total.dtype)
    outer = batch * length
    means, inverses = b.empty((outer,), y.dtype), b.empty((outer,), y.dtype)
    if y.size:
        epsilon = node.number("epsilon", 1e-12)
        flat = b.flat(total), b.flat(scale), b.flat(bias)
        results = Normalized(b.flat(y), means, inverses)
        b.call(normalize_rows, *flat, results, outer, width, epsilon, 1)
    counts = b.empty((batch,), np.int32)
    b.call_numpy(_count_words, mask, counts)
    return y, counts, total


def _counted(batch: int, length: int) -> Array:
    """Numbers from 0 on, for each sentence."""
    return np.broadcast_to(np.arange(length, dtype=np.int32), (batch, length))


def _count_words(mask: Array | None, counts: Array) -> None:
    if mask is None:
        counts.fill(0)
    else:
        np.sum(mask != 0, axis=1, out=counts)
