"""Products of float32 rows with panels of block-quantized weights, for few rows.

Where a level of instruction sets has kernels for it, rows are quantized to int16
(`rows_int16`) and multiplied by `dot_blocks`. Elsewhere, and for rows that hold infinity or
NaN, weights are dequantized to float32 block by block; `panels` says how they are packed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.gemm.shares import own_share
from partita_cpu.jit.intrinsics.address_array import floats_at, shorts_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import address, call_blocks
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.quantized_weights.six_bits import six_bit_level
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, GROUP_TERMS, STEP, Zeros
from partita_cpu.scalar.half_floats import float16_to_float32

FLOAT_ROWS = 16
"""Rows that share a block of weights made floats."""

MOST_ROWS = 12
"""Rows of the largest kernel of any level."""

_HALVES, _BYTES = int(Zeros.HALVES), int(Zeros.BYTES)
_EQUAL, _FLOATS, _LEVELS = int(Zeros.EQUAL), int(Zeros.FLOATS), int(Zeros.LEVELS)


class RowSizes(NamedTuple):
    """Sizes of a product.

    Attributes:
        rows: Of the left side.
        terms: Of a row.
        columns: Of the right side.
        size: Terms of a block.
        bits: Of a weight.
        scale_bytes: Of a scale; 1 for levels.
        zeros: `Zeros`.
        zero: The zero point if all are equal.
        chunk: Rows that meet a panel before the next one.
        shares: Into how many shares columns are cut.
    """

    rows: int
    terms: int
    columns: int
    size: int
    bits: int
    scale_bytes: int
    zeros: int
    zero: int
    chunk: int
    shares: int


def scratch_floats(size: int) -> int:
    """Scratch memory of a thread, in floats: a block, and sums of its products."""
    return (size + FLOAT_ROWS) * COLUMNS


class BlockArrays(NamedTuple):
    """Arrays of a product beside its left side.

    Attributes:
        w: Packed weights, as bytes.
        scales: As bytes; levels have their factors behind them.
        zeros: Likewise.
        bias: One number per column, float32.
        y: The result, flat.
    """

    w: KernelArray
    scales: KernelArray
    zeros: KernelArray
    bias: KernelArray
    y: KernelArray


class _Panel(NamedTuple):
    """A panel.

    Attributes:
        w: Address of its weights.
        scales: Of its scales.
        zeros: Of its zero points.
        zero_bytes: Of one of these.
        column: Its first column.
        exist: How many of its columns do.
        factors: Address of factors of scales that are levels.
        zero_factors: Likewise of zero points.
    """

    w: int
    scales: int
    zeros: int
    zero_bytes: int
    column: int
    exist: int
    factors: int
    zero_factors: int


@loop(inline=True)
def floats_of_thread(size: int) -> Any:
    """The same, for kernels."""
    return (size + FLOAT_ROWS) * COLUMNS


@loop
def multiply_blocks(
    x: Any,
    quantized: Any,
    arrays: BlockArrays,
    kernels: Any,
    sizes: RowSizes,
    floats: Any,
    tid: int,
    nt: int,
) -> None:
    """``y = x @ w + bias``.

    Args:
        x: The left side, flat.
        quantized: The same as `quantize_rows` leaves it; not read without kernels.
        arrays: Weights, bias, result.
        kernels: The kernel for each number of rows, or 0; all 0 if there are none.
        sizes: Of the product.
        floats: Scratch memory for each thread: a block as floats, and sums.
        tid: This thread.
        nt: All threads.
    """
    native = kernels[1] != 0
    panels = -(-sizes.columns // COLUMNS)
    groups = -(-sizes.rows // MOST_ROWS)
    threads = min(nt, floats.size // floats_of_thread(sizes.size))
    top, bottom, first, last = own_share(sizes.shares, tid, threads, groups, panels)
    if tid >= threads or top == bottom or first == last:
        return
    top, bottom = top * MOST_ROWS, min(bottom * MOST_ROWS, sizes.rows)
    own = address(floats) + 4 * tid * floats_of_thread(sizes.size)
    for start in range(top, bottom, sizes.chunk):
        stop = min(start + sizes.chunk, bottom)
        for number in range(first, last):
            panel = panel_of(arrays, sizes, number)
            if native:
                _multiply_quantized(quantized, arrays, kernels, sizes, panel, start, stop)
            else:
                for row in range(start, stop, FLOAT_ROWS):
                    end = min(row + FLOAT_ROWS, stop)
                    multiply_floats(x, arrays, sizes, panel, own, row, end)
    if native:
        whole = row_bytes_of(sizes)
        repeat_unusual(x, quantized, whole, arrays, sizes, own, (top, bottom, first, last))


@loop
def repeat_unusual(
    x: Any, quantized: Any, whole: int, arrays: BlockArrays, sizes: RowSizes, own: int, share: Any
) -> None:
    """Computes rows of a share anew that hold infinity or NaN, which integers do not.

    Args:
        x: The left side, float32, flat.
        quantized: Its rows in bytes, each of which ends with whether all of it is finite.
        whole: Bytes of such a row.
        arrays: Weights, bias, and the result, which is written.
        sizes: Of the product.
        own: Address of this thread's `floats_of_thread` floats.
        share: The first row and the one behind the last, the first panel and the one behind.
    """
    top, bottom, first, last = share
    for row in range(top, bottom):
        if sizes_at(address(quantized) + (row + 1) * whole - 8, 2)[0]:
            continue
        for number in range(first, last):
            multiply_floats(x, arrays, sizes, panel_of(arrays, sizes, number), own, row, row + 1)


@loop(inline=True)
def row_bytes_of(sizes: RowSizes) -> Any:
    """`row_bytes`, for kernels."""
    blocks = -(-sizes.terms // sizes.size)
    return 2 * blocks * sizes.size + 8 * blocks + 8


@loop(inline=True)
def panel_of(arrays: BlockArrays, sizes: RowSizes, number: int) -> Any:
    """A panel."""
    blocks = -(-sizes.terms // sizes.size)
    count = blocks * COLUMNS * number
    zero_bytes = sizes.zeros
    if sizes.zeros == _FLOATS:
        zero_bytes = 4
    elif sizes.zeros == _LEVELS:
        zero_bytes = 1
    column = number * COLUMNS
    behind = -(-sizes.columns // COLUMNS) * blocks * COLUMNS
    behind += 4 * COLUMNS * number * (blocks * sizes.size // GROUP_TERMS)
    return _Panel(
        address(arrays.w) + count * sizes.size * sizes.bits // 8,
        address(arrays.scales) + count * sizes.scale_bytes,
        address(arrays.zeros) + count * zero_bytes,
        zero_bytes,
        column,
        min(COLUMNS, sizes.columns - column),
        address(arrays.scales) + behind,
        address(arrays.zeros) + behind,
    )


@loop
def _multiply_quantized(
    quantized: Any,
    arrays: BlockArrays,
    kernels: Any,
    sizes: RowSizes,
    panel: _Panel,
    start: int,
    stop: int,
) -> None:
    """Some rows times a panel, by kernels for several rows.

    Args:
        quantized: Rows as bytes, with their scales.
        arrays: Bias and result.
        kernels: Addresses of kernels, by rows of a call.
        sizes: Of rows, columns and blocks.
        panel: Weights.
        start: The first row.
        stop: Behind the last one.
    """
    whole, blocks = row_bytes_of(sizes), -(-sizes.terms // sizes.size)
    row = start
    while row < stop:
        count = min(stop - row, MOST_ROWS)
        while kernels[count] == 0:
            count -= 1
        call_blocks(
            kernels[count],
            (
                address(quantized) + row * whole,
                whole,
                2 * blocks * sizes.size,
                panel.w,
                panel.scales,
                panel.zeros,
                blocks,
                sizes.size // STEP,
                address(arrays.bias) + 4 * panel.column,
                address(arrays.y) + 4 * (row * sizes.columns + panel.column),
                4 * sizes.columns,
                panel.exist,
                panel.factors,
                panel.zero_factors,
                GROUP_TERMS // sizes.size,
            ),
        )
        row += count


@loop
def multiply_floats(
    x: Any, arrays: BlockArrays, sizes: RowSizes, panel: _Panel, own: int, start: int, stop: int
) -> None:
    """A few rows times a panel whose weights are made floats block by block.

    Args:
        x: The left side, float32, flat.
        arrays: The bias, and the result, which is written.
        sizes: Of the product.
        panel: Of the weights.
        own: Address of this thread's `floats_of_thread` floats.
        start: The first row.
        stop: The one behind the last; at most `FLOAT_ROWS` are computed.
    """
    add_up_floats(x, sizes, panel, own, start, stop)
    store_sums(arrays, sizes, panel, own, start, stop)


@loop
def store_sums(
    arrays: BlockArrays, sizes: RowSizes, panel: _Panel, own: int, start: int, stop: int
) -> None:
    """Writes what `add_up_floats` has left to some rows of the result.

    Args:
        arrays: The bias, and the result, which is written.
        sizes: Of the product.
        panel: Of the weights.
        own: As `add_up_floats` had it.
        start: The first row.
        stop: The one behind the last.
    """
    sums = floats_at(sums_at(own, sizes.size), FLOAT_ROWS * COLUMNS)
    for r in range(stop - start):
        at = (start + r) * sizes.columns + panel.column
        for c in range(panel.exist):
            arrays.y[at + c] = sums[r * COLUMNS + c] + arrays.bias[panel.column + c]


@loop(inline=True)
def sums_at(own: int, size: int) -> Any:
    """Where `add_up_floats` leaves sums, an address: `FLOAT_ROWS` rows of a panel."""
    return own + 4 * size * COLUMNS


@loop
def add_up_floats(x: Any, sizes: RowSizes, panel: _Panel, own: int, start: int, stop: int) -> None:
    """Sums of a few rows times a panel, which stay at `sums_at`.

    Args:
        x: The left side, float32, flat.
        sizes: Of the product.
        panel: Of the weights.
        own: Address of this thread's `floats_of_thread` floats: a block of weights, and sums.
        start: The first row.
        stop: The one behind the last; at most `FLOAT_ROWS` are summed.
    """
    size = sizes.size
    weights = floats_at(own, size * COLUMNS)
    sums = floats_at(sums_at(own, size), FLOAT_ROWS * COLUMNS)
    for r in range(stop - start):
        for c in range(COLUMNS):
            sums[r * COLUMNS + c] = np.float32(0)
    for block in range(-(-sizes.terms // size)):
        unpack_block(panel, block, sizes, weights)
        first = block * size
        there = min(size, sizes.terms - first)
        for r in range(stop - start):
            at = (start + r) * sizes.terms + first
            total = sums[r * COLUMNS : (r + 1) * COLUMNS]
            for k in range(there):
                factor = x[at + k]
                row = weights[k * COLUMNS : (k + 1) * COLUMNS]
                for c in range(COLUMNS):
                    total[c] += factor * row[c]


@loop
def unpack_block(panel: _Panel, block: int, sizes: RowSizes, out: Any) -> None:
    """The weights of a block of a panel as floats, term by term, 16 columns each.

    Args:
        panel: The panel.
        block: Which block.
        sizes: Of the product.
        out: As many floats.
    """
    size, pair_bits = sizes.size, sizes.bits
    each = COLUMNS * block
    words = shorts_at(panel.w + each * size * pair_bits // 8, size * COLUMNS * pair_bits // 16)
    pairs = 16 // pair_bits
    mask = (1 << pair_bits) - 1
    for c in range(COLUMNS):
        scale, term = _numbers_of(panel, block, c, sizes)
        for pair in range(size // 2):
            place = (pair // pairs * COLUMNS + c) * 2
            shift = pair % pairs * pair_bits
            for i in range(2):
                if pair_bits == 6:
                    level = np.float32(six_bit_level(words, pair, c, i))
                else:
                    level = np.float32((np.int64(words[place + i]) >> shift) & mask)
                out[(2 * pair + i) * COLUMNS + c] = (
                    (level - np.float32(sizes.zero)) * scale
                    if sizes.zeros == _EQUAL
                    else level * scale - term
                )


@loop(inline=True)
def _numbers_of(panel: _Panel, block: int, c: int, sizes: RowSizes) -> Any:
    """Scale, and zero point times scale, of a block of a column."""
    place = COLUMNS * block + c
    factor = block * sizes.size // GROUP_TERMS * COLUMNS + c
    if sizes.scale_bytes == 1:
        scale = _level_at(panel.scales, place) * floats_at(panel.factors + 4 * factor, 1)[0]
    elif sizes.scale_bytes == 2:
        scale = float16_to_float32(shorts_at(panel.scales + 2 * place, 1)[0])
    else:
        scale = floats_at(panel.scales + 4 * place, 1)[0]
    term = np.float32(0)
    if sizes.zeros == _BYTES:
        term = np.float32(_byte_at(panel.zeros, place)) * scale
    elif sizes.zeros == _HALVES:
        term = float16_to_float32(shorts_at(panel.zeros + 2 * place, 1)[0])
    elif sizes.zeros == _FLOATS:
        term = floats_at(panel.zeros + 4 * place, 1)[0]
    elif sizes.zeros == _LEVELS:
        term = _level_at(panel.zeros, place) * floats_at(panel.zero_factors + 4 * factor, 1)[0]
    return scale, term


@loop(inline=True)
def _byte_at(start: int, place: int) -> Any:
    """The byte at a place behind an even address."""
    word = np.int64(shorts_at(start + (place & -2), 1)[0])
    return (word >> (8 * (place & 1))) & 255


@loop(inline=True)
def _level_at(start: int, place: int) -> Any:
    """The same as int8, in float32."""
    byte = _byte_at(start, place)
    return np.float32(byte - ((byte & 128) << 1))
