"""Products of many rows with block-quantized weights in vectors, on processors without AMX.

Weights of some columns are unpacked into the first-level cache and used by all rows of a chunk; the
chunk's rows stay in the second-level cache while columns change. Rows are int16, as `quantize_rows`
leaves them, or int8, as `quantize_groups` does; `dot_unpacked` has the tile kernels and says what
words and units are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.gemm.shares import own_share
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.intrinsics.address_call import address, call_unpack_words, call_unpacked
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.quantized_weights.row_products import (
    MOST_ROWS,
    BlockArrays,
    RowSizes,
    floats_of_thread,
    panel_of,
    repeat_unusual,
    scratch_floats,
)
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, STEP
from partita_cpu.machine_model import MachineModel

TERMS = 640
"""Most that are unpacked at a time."""

UNPACKED_BYTES = 2 * TERMS * COLUMNS
"""Of unpacked weights at a time: two thirds of a first-level cache of 32 KB."""

PAIR_ROWS = 48
"""Making weights int16 pays from so many rows on."""

QUAD_ROWS = {8: 12, 16: 32}
"""The same for bytes, by lanes of a vector: kernels that unpack have few rows at a time in 8."""

ROWS_SHARE = 1 / 2
"""Of the second-level cache, for rows that meet one panel after another."""

FEW_ROWS = 120
"""Rows at least that meet what was unpacked, where there are so many."""

_LINE = 16
"""Floats of a line of the cache."""

_LINE_BYTES = 64


class Unpacked(NamedTuple):
    """What both sides become.

    Attributes:
        factor: Bytes of a factor: 2 for pairs, 1 for quads.
        unit: Terms that share a scale, on both sides.
        width: Columns that are unpacked together.
        depth: Chunks of terms that rows meet of some columns before they meet other columns.
    """

    factor: int
    unit: int
    width: int
    depth: int = 1


@register_jitable
def most_terms(unpacked: Any) -> Any:
    """Terms that are unpacked at a time."""
    return min(TERMS, UNPACKED_BYTES // (unpacked.width * unpacked.factor))


def fewest_rows(level: Level, unpacked: Unpacked) -> int:
    """Rows of a product from which on weights are unpacked."""
    return PAIR_ROWS if unpacked.factor == 2 else QUAD_ROWS[level.lanes]


def pays_for_pairs(machine: MachineModel) -> bool:
    """Whether weights are better made int16 once for many rows than for each few of them.

    With many registers that is so where two units multiply vectors: as many pairs of rows are read
    as are multiplied then, and unpacking takes one of the two units.
    """
    return machine.level.lanes == 8 or not machine.halves_vectors


def row_bytes(terms: int, size: int, unpacked: Unpacked) -> int:
    """Bytes of a row: terms, two numbers for each unit, and whether all are finite."""
    padded = -(-terms // size) * size
    return padded * unpacked.factor + 8 * (padded // unpacked.unit) + 8


def thread_floats(size: int, unpacked: Unpacked) -> int:
    """Scratch memory of a thread, in floats, for blocks of so many terms."""
    terms: int = most_terms(unpacked)
    numbers = 2 * (terms // unpacked.unit + 1) * unpacked.width
    return scratch_floats(size) + terms * unpacked.width * unpacked.factor // 4 + numbers + _LINE


def in_depth(machine: MachineModel, unpacked: Unpacked, terms: int, size: int) -> Unpacked:
    """With all chunks of so many terms, in blocks of a size, if enough rows of them fit the cache.

    Sums of a product then pass through memory once. Of longer rows one chunk after another meets
    all rows: with some at a time little would be saved, and fewer rows share what is unpacked.
    """
    blocks = -(-terms // size)
    chunks = -(-blocks // (most_terms(unpacked) // size))
    deep = unpacked._replace(depth=chunks)
    return deep if chunk_rows(machine, deep) >= FEW_ROWS else unpacked


def chunk_rows(machine: MachineModel, unpacked: Unpacked) -> int:
    """Rows whose part of these chunks the second-level cache holds, of whole groups."""
    of_row = unpacked.depth * _chunk_bytes(unpacked)
    return max(1, machine.l2_bytes(ROWS_SHARE) // of_row // MOST_ROWS) * MOST_ROWS


def _chunk_bytes(unpacked: Unpacked) -> int:
    """Bytes of a row's part of a chunk."""
    terms: int = most_terms(unpacked)
    return terms * unpacked.factor + 8 * (terms // unpacked.unit)


@loop
def multiply_unpacked_rows(
    x: Any,
    quantized: Any,
    arrays: BlockArrays,
    kernels: Any,
    sizes: RowSizes,
    unpacked: Unpacked,
    floats: Any,
    tid: int,
    nt: int,
) -> None:
    """``y = x @ w + bias``.

    Args:
        x: The left side, flat.
        quantized: The same as int16 or int8.
        arrays: Weights, bias, result.
        kernels: `tile_kernels.pair_kernels` or `quad_kernels`, for weights as they are.
        sizes: Of the product.
        unpacked: What both sides become.
        floats: Scratch memory, `thread_floats` for each thread.
        tid: This thread.
        nt: All threads.
    """
    size, unit, width = sizes.size, unpacked.unit, unpacked.width
    blocks, across = -(-sizes.terms // size), -(-sizes.columns // width)
    terms = most_terms(unpacked)
    room = floats_of_thread(size) + terms * width * unpacked.factor // 4
    room += 2 * (terms // unit + 1) * width + _LINE
    threads = min(nt, floats.size // room)
    groups = -(-sizes.rows // MOST_ROWS)
    top, bottom, first, last = own_share(sizes.shares, tid, threads, groups, across)
    if tid >= threads or top == bottom or first == last:
        return
    top, bottom = top * MOST_ROWS, min(bottom * MOST_ROWS, sizes.rows)
    own = address(floats) + 4 * tid * room
    to = own + 4 * floats_of_thread(size)
    to += -to % (4 * _LINE)
    panels, chunks = width // COLUMNS, -(-blocks // (terms // size))
    each = -(-(bottom - top) // -(-(bottom - top) // sizes.chunk))  # no piece is much shorter
    each += -each % MOST_ROWS
    for group in range(0, chunks, unpacked.depth):
        end = min(group + unpacked.depth, chunks)
        for start in range(top, bottom, each):
            stop = min(start + each, bottom)
            for number in range(first, last):
                for chunk in range(group, end):
                    coming, after = number, chunk + 1
                    if after == end:
                        coming, after = min(number + 1, last - 1), group
                    following = coming * panels, blocks * after // chunks
                    block = blocks * chunk // chunks
                    count = blocks * (chunk + 1) // chunks - block
                    place = Place(to, number * width, block, count, start, stop, *following)
                    _unpack(arrays, kernels[0], sizes, unpacked, place)
                    _multiply_rows(quantized, arrays, kernels, sizes, unpacked, place)
    last = min(last * panels, -(-sizes.columns // COLUMNS))
    whole = _row_bytes_of(sizes, unpacked)
    repeat_unusual(x, quantized, whole, arrays, sizes, own, (top, bottom, first * panels, last))


class Place(NamedTuple):
    """Some rows, columns and blocks of a product.

    Attributes:
        w: Address of the unpacked weights.
        column: The first one.
        block: The first one.
        blocks: How many.
        start: The first row.
        stop: Behind the last one.
        next_panel: The first panel of those that come next.
        next_block: The first block of these.
    """

    w: int
    column: int
    block: int
    blocks: int
    start: int
    stop: int
    next_panel: int
    next_block: int


@loop(inline=True)
def _row_bytes_of(sizes: RowSizes, unpacked: Unpacked) -> Any:
    """`row_bytes`, for kernels."""
    padded = -(-sizes.terms // sizes.size) * sizes.size
    return padded * unpacked.factor + 8 * (padded // unpacked.unit) + 8


@loop
def _multiply_rows(
    quantized: Any,
    arrays: BlockArrays,
    kernels: Any,
    sizes: RowSizes,
    unpacked: Unpacked,
    place: Place,
) -> None:
    """Some rows times some blocks of columns, added to what the blocks before them gave.

    Meanwhile the weights that come next are fetched, panel by panel, with their scales and zero
    points: a processor does not guess where they are.

    Args:
        quantized: Rows as bytes, with their scales.
        arrays: Bias and result.
        kernels: Addresses of kernels, by rows of a call.
        sizes: Of rows, columns and blocks.
        unpacked: What weights have become.
        place: The rows, the columns, and their weights.
    """
    factor, unit, width = unpacked.factor, unpacked.unit, unpacked.width
    padded, whole = -(-sizes.terms // sizes.size) * sizes.size, _row_bytes_of(sizes, unpacked)
    term, units = place.block * sizes.size, place.blocks * sizes.size // unit
    pitch = 4 * sizes.columns
    scales = place.w + most_terms(unpacked) * width * factor
    row, turn = place.start, 0
    while row < place.stop:
        rows = min(MOST_ROWS, place.stop - row)
        while kernels[rows] == 0:
            rows -= 1
        ahead = _ahead(arrays, sizes, width // COLUMNS, place, turn, _LINE_BYTES * units)
        turn += 1
        of_row = address(quantized) + row * whole
        y = address(arrays.y) + 4 * (row * sizes.columns + place.column)
        source, step = y, pitch
        if place.block == 0:
            source, step = address(arrays.bias) + 4 * place.column, 0
        call_unpacked(
            kernels[rows],
            (
                of_row + term * factor,
                whole,
                of_row + padded * factor + 8 * (term // unit),
                place.w,
                scales,
                scales + 4 * width * units,
                units,
                unit * factor // 4,
                source,
                step,
                y,
                pitch,
                min(width, sizes.columns - place.column),
                ahead,
                of_row + whole - 4,
            ),
        )
        row += rows


@loop(inline=True)
def _ahead(arrays: Any, sizes: Any, panels: Any, place: Any, turn: Any, step: Any) -> Any:
    """Address of what a kernel fetches: scales and zero points of each panel, then its weights.

    Args:
        arrays: Packed weights.
        sizes: Of rows, columns and blocks.
        panels: How many come next.
        place: Where these are.
        turn: Kernels that were called before.
        step: Bytes that one fetches.
    """
    numbers = 2 * panels if sizes.zeros else panels
    of_block = sizes.size * COLUMNS * sizes.bits // 8
    pieces = -(-of_block * place.blocks // step)
    number = turn - numbers
    if number >= panels * pieces:
        return place.w
    panel = panel_of(
        arrays, sizes, place.next_panel + (turn % panels if number < 0 else number // pieces)
    )
    block = place.next_block
    if turn < panels:
        return panel.scales + block * COLUMNS * sizes.scale_bytes
    if number < 0:
        return panel.zeros + block * COLUMNS * panel.zero_bytes
    return panel.w + block * of_block + number % pieces * step


@loop
def _unpack(
    arrays: BlockArrays,
    kernel: int,
    sizes: RowSizes,
    unpacked: Unpacked,
    place: Place,
) -> None:
    """Some blocks of some columns: weights as words, scales, and zero points times scales.

    Where columns end with half of a width, its last panel takes the place of the one that lacks.
    """
    width, size, units = unpacked.width, sizes.size, sizes.size // unpacked.unit
    panels, at = -(-sizes.columns // COLUMNS), place.block * COLUMNS
    for part in range(width // COLUMNS):
        panel = panel_of(arrays, sizes, min(place.column // COLUMNS + part, panels - 1))
        first = place.w + 4 * COLUMNS * part
        numbers = first + most_terms(unpacked) * width * unpacked.factor
        call_unpack_words(
            kernel,
            (
                panel.w + at * size * sizes.bits // 8,
                panel.scales + at * sizes.scale_bytes,
                panel.zeros + at * panel.zero_bytes,
                place.blocks,
                size // STEP,
                units,
                first,
                numbers,
                numbers + 4 * width * place.blocks * units,
                4 * width,
                np.float32(sizes.zero),
            ),
        )
