"""Packing kernels: blocks of columns, as float32, or as bfloat16 parts in pairs of rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.packing.packing_table import (
    ACROSS,
    ACROSS_STEP,
    BLOCKS,
    CHANNEL_STEP,
    CHANNELS,
    COLUMNS,
    COPY_FLUSHED,
    DOWN,
    DOWN_STEP,
    GROUP_STEP,
    GROUPS,
    LEAVES,
    OUTPUT_STEP,
    OUTPUTS,
    PACK_TILE,
    PADDED,
    PAIRS,
    PLANES,
    ROWS,
    RUN,
    STEP,
    TRANSPOSE,
)
from partita_cpu.gemm.tile_fields import STEP as WHOLE_STEP
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_copy_flushed,
    call_pack_tile,
    call_transpose,
    float_at,
    half_at,
)
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.copies.transpose_block import SIDE
from partita_cpu.scalar.instructions import bits

PLACES = WHOLE_STEP
"""Rows of a piece: as many as AMX takes at a time."""

PIECE = SIDE * WHOLE_STEP
"""Elements of a piece: so many rows of half a block."""

PARTS = 3
"""Parts of an element, at most."""


class PackingRoom(NamedTuple):
    """Memory of a thread that packs.

    Attributes:
        places: `PLACES` numbers: where the rows of a piece are.
        floats: `PIECE` floats: its elements.
        parts: `PARTS` times as many numbers: their parts.
    """

    places: Array
    floats: Array
    parts: Array


@loop(effort=Effort.CALLS)
def pack_blocks(
    w: int,
    whole: Array,
    halves: Array,
    places: Array,
    floats: Array,
    parts: Array,
    found: Array,
    p: Array,
    tid: int,
    nt: int,
) -> None:
    """Blocks of columns, shared among threads; see `pack_units`.

    Args:
        w: Address of the weights.
        whole: The result, if it is kept whole.
        halves: The result, if it is not.
        places: For each thread that of `PackingRoom`.
        floats: Likewise.
        parts: Likewise.
        found: For each thread, the largest bit pattern of an absolute value that it laid out.
        p: The table; see `table`.
        tid: This thread.
        nt: All threads; they share blocks.
    """
    units = p[GROUPS] * p[BLOCKS]
    begin, end = units * tid // nt, units * (tid + 1) // nt
    room = PackingRoom(places[tid], floats[tid], parts[tid])
    found[tid] = max(found[tid], pack_units(w, whole, halves, room, p, begin, end))


@loop
def pack_halves(
    w: int,
    out: Array,
    depth: int,
    columns: int,
    width: int,
    down: int,
    across: int,
    tid: int,
    nt: int,
) -> None:
    """A matrix of 16-bit numbers in blocks of columns, which threads share, zeros behind the last.

    Args:
        w: Address of the matrix; it need not be a multiple of two.
        out: The result (block, row, column).
        depth: Rows.
        columns: Columns.
        width: Of a block.
        down: Elements from one row to the next.
        across: Elements from one column to the next.
        tid: This thread.
        nt: All threads.
    """
    blocks = -(-columns // width)
    for block in range(blocks * tid // nt, blocks * (tid + 1) // nt):
        exist, start = min(width, columns - block * width), block * width
        for top in range(0, depth, PLACES):
            # A line of a column is read at a time, or one of a row, as they lie.
            for j in range(width):
                column, place = w + 2 * (start + j) * across, block * depth * width + j
                for k in range(top, min(top + PLACES, depth)):
                    found = half_at(column + 2 * k * down) if j < exist else np.uint16(0)
                    out[place + k * width] = found


@loop(effort=Effort.CALLS)
def pack_units(
    w: int, whole: Array, halves: Array, room: PackingRoom, p: Array, begin: int, end: int
) -> Any:
    """Blocks of columns, piece by piece: as many rows of half a block as are one step of AMX.

    Returns the largest bit pattern of an absolute value that was made bfloat16.

    Args:
        w: Address of the weights, float32 in any order; it need not be a multiple of four.
        whole: The result as floats (block, row, column), if they are kept whole.
        halves: The same memory, as `llvm.tiles.amx` says, if they are not: (block, step, part, half
            of the columns, pair of rows, column, 2); for vectors (block, pair of rows, column, 2).
        room: Memory.
        p: The table; see `table`.
        begin: The first block; they are counted group by group.
        end: Behind the last one.
    """
    if p[PACK_TILE]:
        return _pack_halves_of(w, halves, room, p, begin, end)
    if p[OUTPUT_STEP] == 1:
        _pack_lines(w, whole, room.places, p, begin, end)
    else:
        _pack_windows(w, whole, room, p, begin, end)
    left = p[PADDED] - p[RUN]
    for place in range(begin * p[ROWS] + p[RUN], end * p[ROWS] if left else 0, p[PADDED]):
        whole[place * p[COLUMNS] : (place + left) * p[COLUMNS]] = np.float32(0)
    return 0


@loop
def _pack_lines(w: int, whole: Array, places: Array, p: Array, begin: int, end: int) -> None:
    """Floats of which rows lie together, as they are wanted; all blocks row by row.

    Args:
        w: As `pack_units` has it.
        whole: As `pack_units` has it.
        places: Memory for the places of a piece's rows.
        p: The table.
        begin: The first block.
        end: Behind the last one.
    """
    side, rows, down = min(SIDE, p[COLUMNS]), p[ROWS], 4 * p[CHANNEL_STEP]
    for k in range(WHOLE_STEP):
        places[k] = k * p[COLUMNS]
    for row in range(0, p[RUN], WHOLE_STEP):
        count = min(WHOLE_STEP, p[RUN] - row)
        for unit in range(begin, end):
            group = unit // p[BLOCKS]
            first = (unit - group * p[BLOCKS]) * p[COLUMNS]
            source = w + 4 * (group * p[GROUP_STEP] + first) + row * down
            target = address(whole) + 4 * (unit * rows + row) * p[COLUMNS]
            for half in range(p[COLUMNS] // side):
                exist = max(0, min(side, p[OUTPUTS] - first - half * side))
                if exist or not p[LEAVES]:
                    start, to = source + 4 * half * side, target + 4 * half * side
                    of_rows = start, down, to, address(places), count, exist
                    call_copy_flushed(p[COPY_FLUSHED], of_rows)


@loop
def _pack_windows(w: int, whole: Array, room: PackingRoom, p: Array, begin: int, end: int) -> None:
    """Floats that lie output by output, and are read so: transposed, then dealt out to their rows.

    Those of a channel's window lie together.

    Args:
        w: As `pack_units` has it.
        whole: As `pack_units` has it.
        room: Memory.
        p: The table.
        begin: The first block.
        end: Behind the last one.
    """
    side, across, window = min(SIDE, p[COLUMNS]), 4 * p[OUTPUT_STEP], p[DOWN] * p[ACROSS]
    for unit in range(begin, end):
        group = unit // p[BLOCKS]
        first = (unit - group * p[BLOCKS]) * p[COLUMNS]
        origin = w + 4 * (group * p[GROUP_STEP] + first * p[OUTPUT_STEP])
        y, x, c = 0, 0, 0
        for start in range(0, window * p[CHANNELS], WHOLE_STEP):
            count = min(WHOLE_STEP, window * p[CHANNELS] - start)
            if window > 1 or start == 0:
                y, x, c = _find_places(room.places, p, count, y, x, c)
            begun = start if window == 1 else 0
            for half in range(p[COLUMNS] // side):
                exist = max(0, min(side, p[OUTPUTS] - first - half * side))
                if exist or not p[LEAVES]:
                    source = origin + 4 * start + half * side * across
                    _transpose(source, across, room.floats, p, count, exist)
                    target = address(whole) + 4 * half * side
                    target += 4 * (unit * p[ROWS] + begun) * p[COLUMNS]
                    transposed, places = address(room.floats), address(room.places)
                    of_rows = transposed, 4 * side, target, places, count, exist
                    call_copy_flushed(p[COPY_FLUSHED], of_rows)


@loop
def _find_places(places: Array, p: Array, count: int, y: int, x: int, c: int) -> Any:
    """Where so many elements go that lie one behind the other; returns the one behind them.

    In the weights come those of a window first, in the result those of a place in it.

    Args:
        places: Gets them.
        p: The table.
        count: How many.
        y: The first one's tap, down.
        x: The first one's tap, across.
        c: The first one's channel.
    """
    left = p[PADDED] - p[RUN]
    for k in range(count):
        row = (y * p[ACROSS] + x) * p[CHANNELS] + c
        if left:
            row += row // p[RUN] * left
        places[k] = row * p[COLUMNS]
        if p[ACROSS_STEP] == 1:
            x += 1
            if x == p[ACROSS]:
                y, x = y + 1, 0
        else:
            y += 1
            if y == p[DOWN]:
                y, x = 0, x + 1
        if y == p[DOWN] or x == p[ACROSS]:
            y, x, c = 0, 0, c + 1
    return y, x, c


@loop
def _transpose(source: int, across: int, out: Array, p: Array, count: int, exist: int) -> None:
    """Writes some columns of floats as rows.

    Args:
        source: Address of the first column.
        across: Bytes from one column to the next.
        out: Rows, flat.
        p: Sizes, and the kernel that transposes.
        count: Elements of a column.
        exist: Columns that there are; the others of a row are left as they are.
    """
    side, done = min(SIDE, p[COLUMNS]), 0
    if exist == side:
        done = count // side * side
        for k in range(0, done, side):
            target = address(out) + 4 * k * side
            call_transpose(p[TRANSPOSE], (source + 4 * k, across, target, 4 * side))
    for k in range(done, count):
        for j in range(exist):
            out[k * side + j] = float_at(source + j * across + 4 * k)


@loop
def _pack_halves_of(
    w: int, halves: Array, room: PackingRoom, p: Array, begin: int, end: int
) -> Any:
    """What becomes bfloat16.

    Args:
        w: As `pack_units` has it.
        halves: As `pack_units` has it.
        room: Memory.
        p: The table.
        begin: The first block.
        end: Behind the last one.

    Returns:
        The largest bit pattern of an absolute value.
    """
    blocks, rows, padded = p[BLOCKS], p[ROWS], p[PADDED]
    side = min(SIDE, p[COLUMNS])
    at_row, piece, split = room.places, room.floats, room.parts
    most = 0
    # Memory is read in order: column by column, or where rows lie together all blocks row by row.
    together = max(1, end - begin) if p[OUTPUT_STEP] == 1 else 1
    for start in range(begin, end, together):
        y, x, c, row = 0, 0, 0, 0
        while row < rows:
            count = min(p[STEP], padded - row % padded)
            there = max(0, min(count, p[RUN] - row % padded))
            for k in range(there):
                at_row[k] = y * p[DOWN_STEP] + x * p[ACROSS_STEP] + c * p[CHANNEL_STEP]
                y, x, c = _next(y, x, c, p)
            for unit in range(start, start + together):
                group = unit // blocks
                first = (unit - group * blocks) * p[COLUMNS]
                origin = w + 4 * (group * p[GROUP_STEP] + first * p[OUTPUT_STEP])
                for half in range(p[COLUMNS] // side):
                    exist = max(0, min(side, p[OUTPUTS] - first - half * side))
                    if exist == 0 and p[LEAVES]:
                        continue
                    at = origin + 4 * half * side * p[OUTPUT_STEP]
                    source, across = _piece(at, piece, at_row, p, there, exist)
                    if p[PAIRS]:
                        place = (unit * rows + row) * p[COLUMNS] + 2 * half * side
                        size = (count, there, exist)
                        largest = _lay_pairs(source, across, halves, split, p, place, size)
                    else:
                        step = (unit * rows + row) // p[STEP]
                        largest = _pack_tiles(
                            source, across, halves, split, p, step, half, there, exist
                        )
                    most = max(most, largest)
            row += count
    return most


@loop
def _piece(start: int, floats: Array, places: Array, p: Array, there: int, exist: int) -> Any:
    """Where a piece begins, and bytes from column to column.

    It is where it was if columns lie together, as they are wanted; else in `floats`.

    Args:
        start: Address of the columns.
        floats: Memory.
        places: Where the piece's rows are.
        p: The table.
        there: Rows that there are.
        exist: Columns that there are.
    """
    wide = 4 * WHOLE_STEP
    if p[CHANNEL_STEP] == 1:
        return start + 4 * places[0], 4 * p[OUTPUT_STEP]
    if p[OUTPUT_STEP] == 1 and exist == min(SIDE, p[COLUMNS]) and there == WHOLE_STEP:
        for k in range(0, WHOLE_STEP, exist):
            target = address(floats) + 4 * k
            call_transpose(p[TRANSPOSE], (start + 4 * places[k], 4 * p[CHANNEL_STEP], target, wide))
    else:
        for j in range(exist):
            column, to = start + 4 * j * p[OUTPUT_STEP], j * WHOLE_STEP
            for k in range(there):
                floats[to + k] = float_at(column + 4 * places[k])
    return address(floats), wide


@loop
def _pack_tiles(
    source: int,
    across: int,
    out: Array,
    parts: Array,
    p: Array,
    step: int,
    half: int,
    there: int,
    exist: int,
) -> Any:
    """Writes a piece in pairs of rows, its parts apart from each other.

    Args:
        source: Address of the piece.
        across: Bytes from column to column.
        out: The result; see `pack_units`.
        parts: Memory.
        p: The table.
        step: The step along the rows; they are counted through all blocks.
        half: The half of the step's columns.
        there: Rows that there are.
        exist: Columns that there are.

    Returns:
        The largest bit pattern of an absolute value.
    """
    size = SIDE * p[STEP]
    largest = 0
    if exist < SIDE:
        for i in range(parts.size):
            parts[i] = 0
    if exist:
        largest = call_pack_tile(p[PACK_TILE], (source, across, exist, there, address(parts)))
    for part in range(p[PLANES]):
        tile = part * PIECE
        place = ((step * p[PLANES] + part) * 2 + half) * size
        if p[STEP] == WHOLE_STEP:
            source = address(parts) + 2 * tile
            call_transpose(p[TRANSPOSE], (source, 4 * SIDE, address(out) + 2 * place, 4 * SIDE))
            continue
        for j in range(SIDE):
            for k in range(p[STEP]):
                out[place + k // 2 * 2 * SIDE + 2 * j + k % 2] = parts[tile + j * WHOLE_STEP + k]
    return largest


@loop
def _lay_pairs(
    source: int, across: int, out: Array, parts: Array, p: Array, place: int, size: Any
) -> Any:
    """Writes a piece in pairs of rows, each as wide as the block.

    Args:
        source: Address of the piece.
        across: Bytes from column to column.
        out: The result; see `pack_units`.
        parts: Memory.
        p: The table.
        place: Where the piece begins in the result.
        size: Rows with padding, rows that there are, and columns that there are.

    Returns:
        The largest bit pattern of an absolute value.
    """
    count, there, exist = size
    largest, pair = 0, 2 * p[COLUMNS]
    side = min(SIDE, p[COLUMNS])
    if exist < side:
        for i in range(PIECE):
            parts[i] = 0
    if exist:
        largest = call_pack_tile(p[PACK_TILE], (source, across, exist, there, address(parts)))
    if count == WHOLE_STEP:
        for k in range(0, WHOLE_STEP, 2 * side):
            target = address(out) + 2 * (place + k // 2 * pair)
            call_transpose(p[TRANSPOSE], (address(parts) + 2 * k, 4 * SIDE, target, 2 * pair))
        return largest
    for k in range(count):
        for j in range(side):
            out[place + k // 2 * pair + 2 * j + k % 2] = parts[j * WHOLE_STEP + k]
    return largest


@loop
def largest_bits(w: int, count: int, found: Array, tid: int, nt: int) -> None:
    """The largest bit pattern of an absolute value among so many floats at an address."""
    largest = np.int32(0)
    for i in range(count * tid // nt, count * (tid + 1) // nt):
        largest = max(largest, np.int32(bits(float_at(w + 4 * i)) & 0x7FFFFFFF))
    found[tid] = largest


@loop(inline=True)
def _next(y: int, x: int, c: int, p: Any) -> Any:
    """The element of a window behind this one: channels first, then across, then down."""
    c += 1
    if c == p[CHANNELS]:
        c, x = 0, x + 1
        if x == p[ACROSS]:
            x, y = 0, y + 1
    return y, x, c


def _like(kind: type, ndim: int) -> Array:
    return np.zeros((0,) * ndim, kind)


_FLAT = _like(np.int64, 1)

_PLACE = 0, _like(np.float32, 1), _like(np.uint16, 1), _like(np.int64, 2)

_ROOM = _like(np.float32, 2), _like(np.uint16, 2)

PACKING = pack_blocks, (*_PLACE, *_ROOM, _FLAT, _FLAT)

CALLS = PACKING, (largest_bits, (0, 0, _FLAT))
"""What is compiled here, and arguments like those that it is called with."""
