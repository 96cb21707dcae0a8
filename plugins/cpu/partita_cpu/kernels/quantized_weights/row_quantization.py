"""Rows of float32 as rows of 16 bits, each block of terms by its largest one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.jit.intrinsics.address_array import floats_at, shorts_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import address, call_groups
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.copies.int8_groups import BIAS, LAST_HALF, LEVEL_POWER, MANTISSA
from partita_cpu.llvm.tiles.dot_blocks import STEP, Zeros
from partita_cpu.scalar.instructions import bits, round_even

LARGEST = 32767.0
"""What the largest term of a block becomes."""

SMALLEST = 1e-30
"""Blocks of smaller terms become zeros: the inverse of their scale would be infinite."""

_EQUAL = int(Zeros.EQUAL)


def row_bytes(terms: int, size: int) -> int:
    """Bytes of a quantized row: terms, numbers of blocks, whether all are finite, a factor."""
    blocks = -(-terms // size)
    return 2 * blocks * size + 8 * blocks + 8


class RowLayout(NamedTuple):
    """How rows of float32 become rows of 16 bits.

    Attributes:
        rows: How many.
        terms: Of a row.
        size: Of a block.
        zeros: `Zeros` of the weights.
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
    """The factor of a row by the terms of its whole blocks: see `int8_groups`."""
    largest = np.int32(0)
    for i in range(blocks.size):
        largest = max(largest, np.int32(bits(blocks[i]) & 0x7FFFFFFF))
    of_level = bits(np.float32(bits(largest) / np.float32(LARGEST)))
    return bits(np.int32((of_level & MANTISSA) | (BIAS << 23)))


@loop(inline=True)
def scale_of(block: Any, factor: Any) -> Any:
    """The scale of a block of terms, its inverse, and whether all of them are finite.

    Both are 0 where the terms are zeros, nearly so, or not finite. `factor`: of which the scale is
    to be a power of two times as much; 0 if it need not.
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
    """Quantizes rows; see `dot_blocks` and `row_bytes`.

    Args:
        x: float32, flat.
        out: Bytes.
        kernel: `tile_kernels.halves_kernel`.
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
