"""Activation rows quantized to int16, with one scale for each block, for products in integers.

The left side of a product with block-quantized weights is quantized when the model runs. Its blocks
are those of the weights, and it has no zero points::

    scale[b] = max(abs(x[k]) for k in block b) / 32767
    level[k] = round(x[k] / scale[b])                    # int16, ties to even

A quantized row is, in this order:

- the levels of all blocks, int16, the last block filled up with zeros;
- per block its scale (float32), and what removes the weights' zero points from the block's sums:
  the scale times the sum of its levels (float32), or, where all zero points are equal, this sum
  times the negative zero point (int32);
- whether all terms are finite (int32), as others are multiplied in float32, by
  `row_products.repeat_unusual`;
- the row's factor (float32), used where `dot_blocks.scales_by_exponents` is true: there scales are
  ``factor * 2**e``, and `e` (as a float32) stands in place of the scale.

The kernels of `quantized_groups` quantize whole blocks; a last block in part is quantized here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.jit.intrinsics.address_array import floats_at, shorts_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import address, call_groups
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.copies.quantized_groups import BIAS, LAST_HALF, LEVEL_POWER, MANTISSA
from partita_cpu.llvm.tiles.dot_blocks import STEP, Zeros
from partita_cpu.scalar.instructions import bits, round_even

LARGEST = 32767.0
"""The level of the term of largest magnitude in a block."""

SMALLEST = 1e-30
"""Blocks of no larger magnitudes become zeros: the inverse of their scale would be infinite."""

_EQUAL = int(Zeros.EQUAL)


def row_bytes(terms: int, size: int) -> int:
    """Bytes of a quantized row of so many terms in blocks of a size; the module has the layout."""
    blocks = -(-terms // size)
    return 2 * blocks * size + 8 * blocks + 8


class RowLayout(NamedTuple):
    """How rows of float32 are quantized to int16.

    Attributes:
        rows: Number of rows.
        terms: Terms of a row.
        size: Terms of a block.
        zeros: Which zero points the weights have, as `Zeros`.
        zero: Their zero point, if all are equal.
        exponents: Whether scales are powers of two times a factor of the row, as
            `dot_blocks.scales_by_exponents` says.
    """

    rows: int
    terms: int
    size: int
    zeros: int
    zero: int
    exponents: int


@loop(inline=True)
def row_factor(blocks: Any) -> Any:
    """The factor of a row, from 1 up to 2, by its whole blocks: see `quantized_groups`."""
    largest = np.int32(0)
    for i in range(blocks.size):
        largest = max(largest, np.int32(bits(blocks[i]) & 0x7FFFFFFF))
    of_level = bits(np.float32(bits(largest) / np.float32(LARGEST)))
    return bits(np.int32((of_level & MANTISSA) | (BIAS << 23)))


@loop(inline=True)
def scale_of(block: Any, factor: Any) -> Any:
    """The scale of a block, its inverse, and whether all terms of the block are finite.

    Scale and inverse are 0 where all terms are (nearly) zero, or some are not finite. If `factor`
    is not 0, the scale is `factor` times a power of two.
    """
    largest = np.int32(0)
    for i in range(block.size):
        largest = max(largest, np.int32(bits(block[i]) & 0x7FFFFFFF))
    top = bits(largest)
    finite = largest < np.int32(0x7F800000)
    scale, inverse = np.float32(0), np.float32(0)
    if finite and top > np.float32(SMALLEST):
        scale, inverse = top / np.float32(LARGEST), np.float32(LARGEST) / top
        if factor > np.float32(0):
            below = np.float32(1) / factor
            power = np.int32(np.int32(bits(top * below) + np.int32(LAST_HALF)) >> 23)
            scale = factor * bits(np.int32((power - LEVEL_POWER) << 23))
            inverse = below * bits(np.int32((2 * BIAS + LEVEL_POWER - power) << 23))
    return scale, inverse, finite


@loop(inline=True)
def exponent_of(scale: Any) -> Any:
    """The exponent of a power of two; 0 of 0."""
    found = np.float32(0)
    if scale > np.float32(0):
        found = np.float32((bits(scale) >> 23) - BIAS)
    return found


@loop
def quantize_rows(x: Any, out: Any, kernel: Any, layout: RowLayout, tid: int, nt: int) -> None:
    """Quantizes float32 rows to int16; the module has the layout of the result.

    Args:
        x: float32, flat.
        out: Bytes; `row_bytes` for each row.
        kernel: `tile_kernels.int16_rows_kernel`.
        layout: Of the rows.
        tid: This thread.
        nt: All threads.
    """
    rows, terms, size, zeros, zero, exponents = layout
    blocks = -(-terms // size)
    whole = 2 * blocks * size + 8 * blocks + 8
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        place = address(out) + row * whole
        quants = shorts_at(place, blocks * size)
        numbers = floats_at(place + 2 * blocks * size, 2 * blocks)
        sums = sizes_at(place + 2 * blocks * size, 2 * blocks)
        source, behind = address(x) + 4 * row * terms, place + 2 * blocks * size
        given = source, place, behind, terms // size, 1, size // STEP, zero
        answer = call_groups(kernel[0], given)
        finite = np.int32(answer & 1)
        factor = bits(np.int32(answer >> 32))  # 0 where scales are not of a factor
        for block in range(terms // size, blocks):  # one that the row ends within
            first = block * size
            there = terms - first
            source = x[row * terms + first : row * terms + terms]
            target = quants[first : first + size]
            scale, inverse, usual = scale_of(source, factor)
            if not usual:
                finite = np.int32(0)
            total = np.int32(0)
            if finite:
                for i in range(there):
                    level = np.int32(round_even(source[i] * inverse))
                    target[i] = np.uint16(level)
                    total = np.int32(total + level)
            for i in range(there, size):
                target[i] = np.uint16(0)
            if exponents:
                scale /= factor
            numbers[2 * block] = exponent_of(scale) if exponents else scale
            if zeros == _EQUAL:
                sums[2 * block + 1] = np.int32(-zero * total)
            else:
                numbers[2 * block + 1] = scale * np.float32(total)
        sizes_at(place + whole - 8, 2)[0] = finite
        floats_at(place + whole - 4, 1)[0] = factor
