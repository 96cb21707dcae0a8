"""Convolutions of bytes: the windows of all pixels as rows, then one product of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita_cpu.kernels.byte_product import emit_packed_product, quads_of, shift_of
from partita_cpu.kernels.loop_jit import loop
from partita_cpu.kernels.movement import transposed
from partita_cpu.kernels.tiles import QUAD
from partita_cpu.kernels.window import resolve


@loop
def gather_windows(
    x: Any,
    zero: Any,
    packed: Any,
    totals: Any,
    table: Any,
    images: int,
    channels: int,
    shift: int,
    tid: int,
    nt: int,
) -> None:
    """The windows of pixels with channels last as rows of uint8, and the rows' sums.

    Rows are filled up with zeros to whole quads; padding is the zero point. ``table`` is that of
    the window.
    """
    depth, height, width = table[0], table[1], table[2]
    out_d, out_h, out_w = table[15], table[16], table[17]
    pixels = out_d * out_h * out_w
    terms = table[3] * table[4] * table[5] * channels
    length = (terms + QUAD - 1) // QUAD * QUAD
    blank = np.int32(zero[0]) + np.int32(shift)
    rows = images * pixels
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        image, pixel = row // pixels, row % pixels
        od, rest = pixel // (out_h * out_w), pixel % (out_h * out_w)
        oh, ow = rest // out_w, rest % out_w
        target = packed[row * length : (row + 1) * length]
        total = np.int32(0)
        at = 0
        for kd in range(table[3]):
            d = od * table[6] + kd * table[9] - table[12]
            for kh in range(table[4]):
                h = oh * table[7] + kh * table[10] - table[13]
                for kw in range(table[5]):
                    w = ow * table[8] + kw * table[11] - table[14]
                    inside = 0 <= d < depth and 0 <= h < height and 0 <= w < width
                    tap = target[at : at + channels]
                    if inside:
                        start = (((image * depth + d) * height + h) * width + w) * channels
                        source = x[start : start + channels]
                        for i in range(tap.size):
                            level = np.int32(np.int32(source[i]) + np.int32(shift))
                            tap[i] = level
                            total = np.int32(total + level)
                    else:
                        for i in range(tap.size):
                            tap[i] = blank
                        total = np.int32(total + blank * channels)
                    at += channels
        for i in range(terms, length):
            target[i] = 0
        totals[row] = total


def taps_first(weights: Array) -> Array:
    """Weights (outputs, channels, taps...) as a matrix (taps and channels, outputs)."""
    outputs = weights.shape[0]
    return weights.reshape(*weights.shape[:2], -1).transpose(2, 1, 0).reshape(-1, outputs)


def emit_byte_convolution(
    b: Builder, node: Node, x: Operand, w: Operand, x_zero: Operand | None, w_zero: Operand | None
) -> Operand:
    """The int32 convolution of bytes less their zero points, of one group; channels second."""
    window = resolve(node, x.shape[2:], w.shape[2:])
    images, channels, outputs = x.shape[0], x.shape[1], w.shape[0]
    shape = (images, outputs, *window.out_shape)
    rows, terms = images * window.pixels, window.taps * channels
    if not rows * outputs:
        return b.empty(shape, np.int32)
    spatial = range(2, x.ndim)
    last = transposed(b, x, (0, *spatial, 1))
    zero = b.constant(np.zeros(1, x.dtype)) if x_zero is None else b.flat(x_zero)
    packed = b.empty((rows * quads_of(terms) * QUAD,), np.uint8)
    totals = b.empty((rows,), np.int32)
    args = (b.constant(window.table), images, channels, shift_of(x))
    b.call(gather_windows, b.flat(last), zero, packed, totals, *args)
    y = emit_packed_product(b, packed, totals, shift_of(x), w, taps_first, terms, x_zero, w_zero)
    y = b.view(y, (images, *window.out_shape, outputs))
    return transposed(b, y, (0, x.ndim - 1, *range(1, x.ndim - 1)))
