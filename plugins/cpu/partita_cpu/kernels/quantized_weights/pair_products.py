"""Products of many rows with quantized weights, in vectors of 8: some are made int16 at a time.

What is unpacked of a panel stays in the first-level cache while the rows of a chunk meet it, and
these in the second-level cache while panels change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_cpu.gemm.shares import own_share
from partita_cpu.jit.intrinsics.address_array import floats_at, shorts_at
from partita_cpu.jit.intrinsics.address_call import address, call_pairs
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.half import float16_to_float32
from partita_cpu.kernels.quantized_weights.row_products import (
    MOST_ROWS,
    BlockArrays,
    RowSizes,
    floats_of_thread,
    panel_of,
    repeat_unusual,
    row_bytes_of,
)
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, Zeros
from partita_cpu.machine_model import MachineModel

TERMS = 640
"""Most that are unpacked at a time: they take two thirds of a first-level cache of 32 KB."""

MANY_ROWS = 48
"""Unpacking pays from so many on."""

ROWS_SHARE = 1 / 2
"""Of the second-level cache, for rows that meet one panel after another."""

_TILE = 6
"""Rows of the largest kernel."""

_LINE = 16
"""Floats of a line of the cache."""

_LEAST_BLOCK = 16
_HALVES, _BYTES = int(Zeros.HALVES), int(Zeros.BYTES)
_EQUAL, _FLOATS = int(Zeros.EQUAL), int(Zeros.FLOATS)

UNPACKED_FLOATS = TERMS * COLUMNS // 2 + 2 * (TERMS // _LEAST_BLOCK + 1) * COLUMNS + _LINE
"""Scratch memory of a thread, in floats: weights, scales and terms of a chunk."""


def chunk_rows(machine: MachineModel, size: int) -> int:
    """Rows whose part of a chunk the second-level cache holds, of whole groups."""
    of_row = 2 * TERMS + 8 * (TERMS // size)
    return max(1, machine.l2_bytes(ROWS_SHARE) // of_row // MOST_ROWS) * MOST_ROWS


@loop
def multiply_pairs(
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
        quantized: The same as `row_products.quantize_rows` leaves it.
        arrays: Weights, bias, result.
        kernels: `tile_kernels.pair_kernels`, for weights as they are.
        sizes: Of the product.
        floats: Scratch memory for each thread: that of `multiply_blocks`, and `UNPACKED_FLOATS`.
        tid: This thread.
        nt: All threads.
    """
    blocks, panels = -(-sizes.terms // sizes.size), -(-sizes.columns // COLUMNS)
    room = floats_of_thread(sizes.size) + UNPACKED_FLOATS
    threads = min(nt, floats.size // room)
    groups = -(-sizes.rows // MOST_ROWS)
    top, bottom, first, last = own_share(sizes.shares, tid, threads, groups, panels)
    if tid >= threads or top == bottom or first == last:
        return
    top, bottom = top * MOST_ROWS, min(bottom * MOST_ROWS, sizes.rows)
    own = address(floats) + 4 * tid * room
    unpacked = own + 4 * floats_of_thread(sizes.size)
    unpacked += -unpacked % (4 * _LINE)
    chunks = -(-blocks // (TERMS // sizes.size))
    for chunk in range(chunks):
        block = blocks * chunk // chunks
        count = blocks * (chunk + 1) // chunks - block
        for start in range(top, bottom, sizes.chunk):
            stop = min(start + sizes.chunk, bottom)
            for number in range(first, last):
                _unpack(arrays, sizes, number, block, count, unpacked)
                _multiply_rows(
                    quantized, arrays, kernels, sizes, unpacked, number, block, count, start, stop
                )
    repeat_unusual(x, quantized, arrays, sizes, own, (top, bottom, first, last))


@loop
def _multiply_rows(
    quantized: Any,
    arrays: BlockArrays,
    kernels: Any,
    sizes: RowSizes,
    unpacked: int,
    number: int,
    block: int,
    count: int,
    start: int,
    stop: int,
) -> None:
    """Some rows times some blocks of a panel, added to what the blocks before them gave."""
    blocks, whole = -(-sizes.terms // sizes.size), row_bytes_of(sizes)
    column = number * COLUMNS
    pitch = 4 * sizes.columns
    scales = unpacked + 2 * TERMS * COLUMNS
    for row in range(start, stop, _TILE):
        rows = min(_TILE, stop - row)
        place = address(quantized) + row * whole
        y = address(arrays.y) + 4 * (row * sizes.columns + column)
        source, step = y, pitch
        if block == 0:
            source, step = address(arrays.bias) + 4 * column, 0
        call_pairs(
            kernels[rows],
            (
                place + 2 * block * sizes.size,
                whole,
                place + 2 * blocks * sizes.size + 8 * block,
                unpacked,
                scales,
                scales + 4 * COLUMNS * count,
                count,
                sizes.size // 2,
                source,
                step,
                y,
                pitch,
                min(COLUMNS, sizes.columns - column),
            ),
        )


@loop
def _unpack(
    arrays: BlockArrays, sizes: RowSizes, number: int, block: int, count: int, to: int
) -> None:
    """Some blocks of a panel: weights less whole zero points as int16, scales, other zero points.

    Scales, and zero points times scales, are float32; see `dot_pairs.PARAMETERS`.
    """
    panel = panel_of(arrays, sizes, number)
    at, per_block = block * COLUMNS, COLUMNS * sizes.size
    of_scales = to + 2 * TERMS * COLUMNS
    of_terms = of_scales + 4 * count * COLUMNS
    _as_floats(panel.scales, at, sizes.scale_bytes, floats_at(of_scales, count * COLUMNS))
    if sizes.zeros == _HALVES or sizes.zeros == _FLOATS:
        terms = floats_at(of_terms, count * COLUMNS)
        _as_floats(panel.zeros, at, panel.zero_bytes, terms)
    zeros = shorts_at(of_terms + 4 * count * COLUMNS, 2 * COLUMNS)
    for j in range(2 * COLUMNS):
        zeros[j] = np.uint16(sizes.zero if sizes.zeros == _EQUAL else 0)
    for i in range(count):
        if sizes.zeros == _BYTES:
            pairs = shorts_at(panel.zeros + at + i * COLUMNS, COLUMNS // 2)
            for j in range(2 * COLUMNS):
                zeros[j] = np.uint16((pairs[j // 4] >> (8 * (j // 2 % 2))) & 255)
        first = (block + i) * per_block
        words = shorts_at(panel.w + first * sizes.bits // 8, per_block * sizes.bits // 16)
        out = shorts_at(to + 2 * i * per_block, per_block)
        if sizes.bits == 4:
            _unpack_nibbles(words, zeros, out)
        else:
            _unpack_bytes(words, zeros, out)


@loop
def _as_floats(source: int, start: int, size: int, out: Any) -> None:
    """Numbers of 2 or 4 bytes each from a place on."""
    if size == 2:
        halves = shorts_at(source + 2 * start, out.size)
        for j in range(out.size):
            out[j] = float16_to_float32(halves[j])
    else:
        floats = floats_at(source + 4 * start, out.size)
        for j in range(out.size):
            out[j] = floats[j]


@loop
def _unpack_nibbles(words: Any, zeros: Any, out: Any) -> None:
    """Four pairs of each word."""
    wide = 2 * COLUMNS
    for group in range(words.size // wide):
        source = words[group * wide : (group + 1) * wide]
        target = out[4 * group * wide : 4 * (group + 1) * wide]
        for j in range(wide):
            word, zero = source[j], zeros[j]
            target[j] = np.uint16((word & 15) - zero)
            target[wide + j] = np.uint16(((word >> 4) & 15) - zero)
            target[2 * wide + j] = np.uint16(((word >> 8) & 15) - zero)
            target[3 * wide + j] = np.uint16((word >> 12) - zero)


@loop
def _unpack_bytes(words: Any, zeros: Any, out: Any) -> None:
    """Two pairs of each word."""
    wide = 2 * COLUMNS
    for group in range(words.size // wide):
        source = words[group * wide : (group + 1) * wide]
        target = out[2 * group * wide : 2 * (group + 1) * wide]
        for j in range(wide):
            word, zero = source[j], zeros[j]
            target[j] = np.uint16((word & 255) - zero)
            target[wide + j] = np.uint16((word >> 8) - zero)
