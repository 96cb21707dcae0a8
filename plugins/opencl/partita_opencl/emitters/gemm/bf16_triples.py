"""Products of float32 as three of bfloat16 on matrix units.

With x = k + d, k rounded to bfloat16 and d what is left, x w is about k k' + d k' + k d': sixteen
bits of either factor. The three are one product of three times the depth, the small ones first,
since matrix units cut sums off. Where x is infinite, the result is infinite or NaN.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partita.lowering import Activation, Array, Operand
from partita.system.array_conversion import converted
from partita_opencl.emitters.gemm.matrix_units import stream_product
from partita_opencl.emitters.gemm.stream import (
    MOST_ROWS,
    Stream,
    StreamOperands,
    packed_bias,
)
from partita_opencl.launches.emitter_kit import Kit, i32, i64
from partita_opencl.passes.half_precision import HALF, SINGLE
from partita_opencl.passes.nhwc import UNIT, filled


def is_triple(
    k: Kit, a: Operand, b: Operand, bias: Operand | None, residual: Operand | None
) -> bool:
    """Whether a product of float32 is computed so: by a constant matrix of whole units."""
    tuning = k.tuning
    if not (tuning.triples and tuning.matrix_units) or a.dtype != SINGLE or a.const is not None:
        return False
    if b.const is None or b.ndim != 2 or a.ndim < 2 or not a.size or b.shape[1] % 2:
        return False
    if a.shape[-1] % UNIT or a.size // a.shape[-1] > MOST_ROWS:
        return False
    if bias is not None and (bias.const is None or bias.size not in (1, b.shape[1])):
        return False
    return residual is None or residual.shape == (*a.shape[:-1], b.shape[1])


def triple_product(
    k: Kit,
    a: Operand,
    b: Operand,
    bias: Operand | None,
    residual: Operand | None,
    activation: Activation,
) -> Operand:
    """Records the product; see :func:`is_triple`.

    Args:
        k: Records it.
        a: Rows of float32.
        b: A constant matrix (depth, columns).
        bias: A term for each column, or ``None``.
        residual: Added element by element, or ``None``.
        activation: Applied last.
    """
    depth, columns = b.shape
    rows = a.size // depth
    wide = Kit(k.builder, replace(k.tuning, bfloat=True))
    parts = k.empty((rows, 3 * depth), HALF)
    eights = a.size // 8
    wide.launch(
        "split_halves.cl",
        "split_halves",
        k.tuning.flat(eights),
        a,
        parts,
        i64(eights),
        i32(depth),
    )
    stream = Stream(
        images=1,
        image=(rows, 1),
        pitch=3 * depth,
        channels=3 * depth,
        filters=columns,
        out=(rows, 1),
        ragged=True,
    )

    def pack(array: Array) -> Array:
        array = converted(array, SINGLE)
        kept = wide.halves(array)
        dropped = wide.halves(array - _wide(kept))
        return np.ascontiguousarray(
            np.pad(
                np.concatenate([kept, dropped, kept]).T, ((0, filled(columns) - columns), (0, 0))
            )
        )

    w = k.builder.prepack(b, "three parts", pack)
    out = k.empty((*a.shape[:-1], columns), SINGLE)
    row = packed_bias(wide, stream, b, bias)
    stream_product(wide, stream, StreamOperands(parts, w, row, residual, out), activation)
    return out


def _wide(halves: Array) -> Array:
    """What the bits of bfloat16 stand for."""
    return (halves.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
