"""The default number of prompt tokens that a decoder reads in one run.

More tokens share what a run costs, and each of them takes memory for the values between operations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from partita.model.model import Model, numpy_dtype, value_shape

if TYPE_CHECKING:
    import onnx_ir as ir

LARGEST_CHUNK = 512
"""More tokens make products no faster: weights are read rarely enough."""

SMALLEST_CHUNK = 128
"""By half as many, prompts of a small model take a tenth longer on processors."""

SHARE_BESIDE = 1 / 10
"""Of the bytes of weights and cache: what all else together may take."""

PROGRAM_BYTES = 12 << 20
"""Of that, what graphs and programs take, whatever the chunk.

Measured on device CPU for 30 layers (``benchmarks/generate_results.py --checks memory``).
"""


def chunk_tokens(model: Model, held_bytes: int) -> int:
    """Tokens that one run reads, so that peaks stay within 1.1 times weights and cache.

    Args:
        model: A decoder; sequences are counted where their number is fixed.
        held_bytes: Bytes of its weights, and of keys and values at the whole context.

    Returns:
        The largest power of two whose values leave room for programs in a tenth of ``held_bytes``,
        but from 128 to 512: small models read fewer at a time, those of a billion weights 512.
    """
    room = SHARE_BESIDE * held_bytes - PROGRAM_BYTES
    chunk = LARGEST_CHUNK
    while chunk > SMALLEST_CHUNK and _live_bytes(model, chunk) > room:
        chunk //= 2
    return chunk


def _live_bytes(model: Model, tokens: int) -> int:
    """The most that values between operations take at a time, in the order of the graph.

    Values of two or three axes count, whose last is their width. What has four axes is the same in
    another order, or scores of attention, which devices compute in pieces.
    """
    ops = model.ops
    last = {
        value.name: index
        for index, op in enumerate(ops)
        for value in op.node.inputs
        if value is not None
    }
    leaving: list[list[int]] = [[] for _ in ops]
    live = most = 0
    for index, op in enumerate(ops):
        for value in op.node.outputs:
            nbytes = _value_bytes(value, tokens)
            live += nbytes
            leaving[last.get(value.name, index)].append(nbytes)
        most = max(most, live)
        live -= sum(leaving[index])
    return most


def _value_bytes(value: ir.Value, tokens: int) -> int:
    """Of a value with a row for each token; 0 for others."""
    shape, dtype = value_shape(value), numpy_dtype(value.dtype)
    if shape is None or dtype is None or not 2 <= len(shape) <= 3:
        return 0
    *before, tokens_axis, width = shape
    if isinstance(tokens_axis, int) or not isinstance(width, int):
        return 0
    sequences = math.prod(dim for dim in before if isinstance(dim, int))
    return sequences * tokens * width * dtype.itemsize
