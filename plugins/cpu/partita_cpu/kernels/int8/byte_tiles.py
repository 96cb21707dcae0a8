"""Compiled loops of 8-bit matrix products: packing of rows, tiles, and their epilogue.

Tables and records of arguments are made in :mod:`partita_cpu.kernels.int8.product`.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from partita_cpu.gemm.tile_kernels import (
    CONFIG,
    CONFIGURE,
    FLOATS,
    LEVELS,
    MOST_DOTS,
    PREPARE,
    RELEASE,
)
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_bytes,
    call_dots,
    call_finish_bytes,
    call_plain,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.int8.register_levels import (
    dots_of,
    fetched_ahead,
    multiply_to_levels,
    prepare_end,
)
from partita_cpu.kernels.linalg.register_tiles import (
    PANEL,
    QUAD,
    ROWS,
    multiply_byte_row,
    multiply_byte_rows,
)
from partita_cpu.llvm.tiles.dot_levels import END_BYTES
from partita_cpu.scalar.instructions import round_even

_STARTS = -(-END_BYTES // 4)
"""Behind what sums end by, in the memory of a thread."""
SHIFT = 128
"""The distance between the ranges of int8 and uint8."""
CHUNK = 32
"""Rows of a tile."""
FEW = 4
"""So many rows or fewer are quicker without tiles of AMX."""
TOGETHER = 8
"""Tiles whose sums are put aside between such blocks, at most."""
TILE = CHUNK * PANEL


class Kind(enum.IntEnum):
    """The form of results: what the epilogue makes of sums."""

    SUMS = 0  # int32, as they are
    FLOATS = 1  # sum * (scale * factor) + bias, in float32
    LEVELS = 2  # round((sum + bias) * (scale * factor)) + zero, saturated


(
    TERMS,  # of a sum
    COLUMNS,  # of the weights
    QUADS,  # of terms
    ROW_SHIFT,  # 128 for rows of int8, which become uint8
    COLUMN_SHIFT,  # -128 for weights of uint8, which become int8
    KIND,  # `Kind` of the result
    LOW,  # its least level; of floats 0 if they have none below
    HIGH,  # its largest level
    STEPS,  # steps of AMX
    PLAIN,  # no zero points of weights, one of all rows, and a factor for every column
    BLOCK,  # steps whose weights stay in the first-level cache
) = range(11)
"""Places of the table of `multiply_bytes`."""


@loop
def pack_rows(
    x: Any,
    packed: Any,
    totals: Any,
    terms: int,
    width: int,
    shift: int,
    counted: int,
    tid: int,
    nt: int,
) -> None:
    """Copies rows as uint8, padded with zeros, and adds each row up.

    Args:
        x: Rows of `terms` bytes, flat.
        packed: Rows of `width` bytes, flat; written.
        totals: The sum of each row; written if `counted`.
        terms: Bytes of a row of x.
        width: Bytes of a packed row.
        shift: What is added to each byte: 128 for int8, else 0.
        counted: Whether rows are added up.
        tid: This thread.
        nt: All threads; they share the rows.
    """
    rows = totals.size
    flipped = np.uint8(shift)  # adding 128 to a byte turns its highest bit over
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source = x[row * terms : (row + 1) * terms]
        target = packed[row * width : (row + 1) * width]
        for i in range(terms):
            target[i] = np.uint8(source[i]) ^ flipped
        for i in range(terms, width):
            target[i] = 0
        if counted:
            total = np.int32(0)
            for i in range(terms):
                total = np.int32(total + np.int32(target[i]))
            totals[row] = total


class ZeroPoints(NamedTuple):
    """What corrects sums for the zero points of both sides.

    Attributes:
        row_totals: Sum of each row.
        column_totals: Sum of each column.
        row_zeros: Zero point of all rows, or of each.
        column_zeros: Zero point of all columns, or of each.
    """

    row_totals: KernelArray
    column_totals: KernelArray
    row_zeros: KernelArray
    column_zeros: KernelArray


class SumScaling(NamedTuple):
    """By what sums become a result; see `Result`.

    Attributes:
        scale: One factor.
        factors: One, or one per column.
        bias: One per column.
        zero: One.
    """

    scale: KernelArray
    factors: KernelArray
    bias: KernelArray
    zero: KernelArray


@loop
def multiply_bytes(
    packed: Any,
    panels: Any,
    zeros: ZeroPoints,
    scaling: SumScaling,
    y: Any,
    scratch: Any,
    kernels: Any,
    p: Any,
    tid: int,
    nt: int,
) -> None:
    """``y = finished(sum((a - za) * (b - zb)))``, from ``sum(a * b)``.

    Args:
        packed: Rows of uint8, as many as fill tiles where kernels are native.
        panels: Weights by panels, int8.
        zeros: Zero points of both sides.
        scaling: What sums become.
        y: The result, (rows, columns).
        scratch: int32; `TOGETHER` tiles for each thread.
        kernels: `tile_kernels.byte_kernels`.
        p: The table.
        tid: This thread.
        nt: All threads.
    """
    rows, quads = zeros.row_totals.size, p[QUADS]
    threads = min(nt, scratch.size // (TOGETHER * TILE))
    if tid >= threads:
        return
    first_chunk, chunks, begin, end = _tasks_of(rows, p, tid, threads)
    if begin == end:
        return
    native, width = kernels[1] != 0, quads * QUAD
    if kernels[PREPARE] and not native:
        tasks = first_chunk, chunks, begin, end
        _multiply_to_levels(packed, panels, zeros, scaling, y, scratch, kernels, p, tid, tasks)
        return
    there = packed.size // width if width else rows
    end_kernel = kernels[LEVELS if p[KIND] == _LEVELS else FLOATS]
    tiles = scratch[tid * TOGETHER * TILE : (tid + 1) * TOGETHER * TILE]
    step = width // p[STEPS]
    # Weights are taken in blocks of terms that stay in the cache from tile to tile.
    blocks = -(-p[STEPS] // p[BLOCK]) if native else 1
    if native:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    start, stop = begin, begin
    for turn in range(blocks * (end - begin)):
        if turn == blocks * (stop - begin):
            start = stop
            stop = min(end, start + TOGETHER, (start // chunks + 1) * chunks)
        block, number = divmod(turn - blocks * (start - begin), stop - start)
        task = start + number
        row, panel = (first_chunk + task % chunks) * CHUNK, task // chunks
        count = min(CHUNK, rows - row)
        at = panel * quads * PANEL * QUAD
        first = row
        tile = tiles[number * TILE : (number + 1) * TILE]
        if native and count > FEW:
            whole = 1 if count * 2 <= CHUNK else 2
            # Tiles are read as a whole: the last one may begin before the one before it ends.
            first = max(min(row, there - whole * CHUNK // 2), 0)
            done = p[STEPS] * block // blocks
            steps = p[STEPS] * (block + 1) // blocks - done
            place = address(packed) + first * width + done * step
            weights = address(panels) + at + done * step * PANEL
            sizes = (steps, step, address(tile), block)
            call_bytes(kernels[whole], (place, width, weights, *sizes))
        elif block == 0:
            following = at + quads * QUAD * PANEL if (task // chunks + 1) * chunks < end else at
            fetched = task % chunks * -(-CHUNK // max(kernels[MOST_DOTS], 1))
            places = at, following, fetched, min(PANEL, p[COLUMNS] - panel * PANEL)
            _fill_tile(packed, panels, tile, kernels, row, count, quads, places)
        if block < blocks - 1:
            continue
        sums = tile[(row - first) * PANEL :]
        if p[PLAIN] and end_kernel and p[KIND] != _SUMS:
            target = address(y) + y.itemsize * (row * p[COLUMNS] + panel * PANEL)
            to = target, y.itemsize * p[COLUMNS]
            _finish_natively(end_kernel, sums, zeros, scaling, to, p, count, panel * PANEL)
        else:
            _finish_tile(sums, zeros, scaling, y, p, row, count, panel * PANEL)
    if native:
        call_plain(kernels[RELEASE], (0,))


@loop
def _multiply_to_levels(
    packed: Any,
    panels: Any,
    zeros: ZeroPoints,
    scaling: SumScaling,
    y: Any,
    scratch: Any,
    kernels: Any,
    p: Any,
    tid: int,
    tasks: Any,
) -> None:
    """`multiply_bytes` by kernels that end sums in the registers.

    Args:
        packed: Packed rows.
        panels: Packed weights.
        zeros: Zero points, and what they are multiplied with.
        scaling: What sums become.
        y: The result, flat.
        scratch: Memory of the threads.
        kernels: `tile_kernels.byte_kernels`.
        p: The table.
        tid: This thread.
        tasks: What `_tasks_of` returns; their chunks are neighbours of one another.
    """
    first_chunk, chunks, task, stop = tasks
    rows, quads, columns = zeros.row_totals.size, p[QUADS], p[COLUMNS]
    width, size = quads * QUAD, quads * QUAD * PANEL
    last = (stop - 1) // chunks
    numbers = address(zeros.column_totals), address(scaling.bias), address(scaling.factors)
    zero, levels = np.int64(zeros.row_zeros[0]) + p[ROW_SHIFT], (p[LOW], np.int64(scaling.zero[0]))
    memory = scratch[tid * TOGETHER * TILE : (tid + 1) * TOGETHER * TILE]
    end_at, starts = address(memory), memory[_STARTS:]
    starts_at, pitch = 0, 0
    if not p[PLAIN]:
        starts_at, pitch = address(starts), 4
    while task < stop:
        panel = task // chunks
        following = min(stop, (panel + 1) * chunks, task + starts.size // CHUNK)
        row = (first_chunk + task % chunks) * CHUNK
        count = min((following - task) * CHUNK, rows - row)
        column = panel * PANEL
        exist = min(PANEL, columns - column)
        prepare_end(kernels, end_at, exist, column, numbers, zero, scaling.scale[0], levels)
        weights = address(panels) + panel * size
        ahead = weights + size if panel < last else weights
        if not p[PLAIN]:
            # What the zero point of the weights is multiplied by.
            column_zero = np.int32(zeros.column_zeros[0] + p[COLUMN_SHIFT])
            all_zeros = np.int32(p[TERMS] * zero)
            totals = zeros.row_totals[row : row + count]
            for i in range(count):
                starts[i] = np.int32(column_zero * np.int32(all_zeros - totals[i]))
        lines = address(packed) + row * width, width, 1, 0, starts_at, pitch
        to = address(y) + row * columns + column, columns
        multiply_to_levels(
            kernels, count, exist, lines, (weights, ahead, quads, size), 0, end_at, to
        )
        task = following


@loop(inline=True)
def _tasks_of(rows: int, p: Any, tid: int, threads: int) -> Any:
    """A thread's first tile down, how many there are, and its first and last tile of all."""
    columns, width = p[COLUMNS], p[QUADS] * QUAD
    chunks, panels = (rows + CHUNK - 1) // CHUNK, (columns + PANEL - 1) // PANEL
    # Threads share rows where these are more than the weights, so that what they computed before
    # is in their caches; else columns.
    if rows * (width + columns) > width * columns and chunks >= 2 * threads:
        first = chunks * tid // threads
        count = chunks * (tid + 1) // threads - first
        return first, count, 0, count * panels
    tasks = chunks * panels
    return 0, chunks, tasks * tid // threads, tasks * (tid + 1) // threads


@loop(inline=True)
def least_of(kind: int, low: int, level: Any) -> Any:
    """The least result: of levels less that of 0; of floats 0, or none where the table has not 0.

    Args:
        kind: `Kind` of results.
        low: What the table has for their least one.
        level: That of 0.
    """
    if kind == _FLOATS:
        return np.float32(-np.inf) if low else np.float32(0)
    return np.float32(low - level)


@loop(inline=True)
def _finish_natively(
    kernel: int,
    sums: Any,
    zeros: ZeroPoints,
    scaling: SumScaling,
    to: Any,
    p: Any,
    count: int,
    column: int,
) -> None:
    """Finishes rows of sums by a kernel.

    Args:
        kernel: Its address.
        sums: Those of a panel.
        zeros: Zero points, and what they are multiplied with.
        scaling: What sums become.
        to: Address of the result, and bytes from row to row.
        p: The table.
        count: Rows.
        column: The first column.
    """
    level = np.int64(scaling.zero[0])
    call_finish_bytes(
        kernel,
        (
            address(sums),
            count,
            min(PANEL, p[COLUMNS] - column),
            address(zeros.column_totals) + 4 * column,
            np.int64(zeros.row_zeros[0]) + p[ROW_SHIFT],
            address(scaling.bias) + 4 * column,
            address(scaling.factors) + 4 * column,
            scaling.scale[0],
            to[0],
            to[1],
            least_of(p[KIND], p[LOW], level),
            np.float32(p[HIGH] - level),
            level,
        ),
    )


@loop
def _fill_tile(
    packed: Any,
    panels: Any,
    tile: Any,
    kernels: Any,
    row: int,
    count: int,
    quads: int,
    places: Any,
) -> None:
    """The sums of some rows and one panel, without tiles of AMX.

    Args:
        packed: Packed rows.
        panels: Packed weights.
        tile: Gets the sums.
        kernels: `tile_kernels.byte_kernels`.
        row: The first row.
        count: How many.
        quads: Of a row.
        places: Where this panel and the next one begin, how many pieces were computed before, and
            the panel's columns that exist.
    """
    step, done = quads * QUAD, 0
    at, following, fetched, columns = places
    dots, most_place = dots_of(columns)
    most = kernels[most_place]
    if most:
        pieces = -(-count // most)
        weights, ahead = address(panels) + at, address(panels) + following
        for piece in range(pieces):
            done = count * piece // pieces
            rows = count * (piece + 1) // pieces - done
            place, sums = address(packed) + (row + done) * step, address(tile) + 4 * done * PANEL
            to = sums, fetched_ahead(weights, ahead, fetched + piece, step * PANEL)
            call_dots(kernels[dots + rows], (place, step, 1, 0, weights, quads, *to))
        return
    for i in range(count * PANEL):
        tile[i] = 0
    while done < count:
        first = (row + done) * step
        if done + ROWS <= count:
            multiply_byte_rows(packed, first, step, panels, at, tile, done * PANEL, PANEL, quads)
            done += ROWS
        else:
            multiply_byte_row(packed, first, 0, panels, at, tile, done * PANEL, 0, quads)
            done += 1


@loop
def _finish_tile(
    tile: Any,
    points: ZeroPoints,
    scaling: SumScaling,
    y: Any,
    p: Any,
    first_row: int,
    count: int,
    column: int,
) -> None:
    """Takes the zero points off, and writes what the sums become.

    Args:
        tile: Sums.
        points: Zero points, and what they are multiplied with.
        scaling: What sums become.
        y: The result, flat.
        p: The table.
        first_row: The first row.
        count: Rows.
        column: The first column.
    """
    row_totals, column_totals, row_zeros, column_zeros = points
    scale, factors, bias, zero = scaling
    exist = min(PANEL, p[COLUMNS] - column)
    totals = column_totals[column : column + exist]
    one_zero, one_factor = column_zeros.size == 1, factors.size == 1
    zeros = column_zeros[:1] if one_zero else column_zeros[column : column + exist]
    scales = factors[:1] if one_factor else factors[column : column + exist]
    terms, shift = bias[column : column + exist], np.int32(p[COLUMN_SHIFT])
    low, high, level = np.float32(p[LOW]), np.float32(p[HIGH]), np.float32(zero[0])
    least = least_of(p[KIND], p[LOW], 0)
    for r in range(count):
        row = first_row + r
        sums = tile[r * PANEL : r * PANEL + exist]
        begin = row * p[COLUMNS] + column
        target = y[begin : begin + exist]
        of_row = np.int32(row_zeros[row if row_zeros.size > 1 else 0] + p[ROW_SHIFT])
        # What a column's zero point is multiplied by.
        rest = np.int32(p[TERMS] * of_row - row_totals[row])
        if one_zero:
            offset = np.int32(np.int32(zeros[0] + shift) * rest)
            for i in range(sums.size):
                sums[i] = np.int32(sums[i] - np.int32(of_row * totals[i]) + offset)
        else:
            for i in range(sums.size):
                offset = np.int32(np.int32(zeros[i] + shift) * rest)
                sums[i] = np.int32(sums[i] - np.int32(of_row * totals[i]) + offset)
        if p[KIND] == _SUMS:
            for i in range(sums.size):
                target[i] = sums[i]
        elif p[KIND] == _FLOATS:
            for i in range(sums.size):
                factor = scale[0] * (scales[0] if one_factor else scales[i])
                value = np.float32(sums[i]) * factor + terms[i]
                target[i] = least if value < least else value
        else:
            for i in range(sums.size):
                factor = scale[0] * (scales[0] if one_factor else scales[i])
                value = round_even(np.float32(np.int32(sums[i] + terms[i])) * factor) + level
                value = low if value < low else value
                target[i] = np.int32(high if value > high else value)


_SUMS, _FLOATS, _LEVELS = int(Kind.SUMS), int(Kind.FLOATS), int(Kind.LEVELS)
