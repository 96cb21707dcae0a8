"""The loops over a panel: columns of packed weights, and the tiles of a column."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.input_panel import line_bytes
from partita_cpu.gemm.macrokernel.padding_taps import edge_taps, taps_inside
from partita_cpu.gemm.macrokernel.tile_epilogue import finish_rows, result_addresses
from partita_cpu.gemm.nonfinite import LARGEST, exact_tile
from partita_cpu.gemm.product_records import (
    Column,
    Epilogue,
    Panel,
    PanelContext,
    PendingRows,
    ProductAddresses,
    TileRange,
)
from partita_cpu.gemm.tile_fields import (
    ARITHMETIC,
    BLOCK_BYTES,
    BLOCKS,
    CHUNK,
    COLUMN_STEP,
    DEPTH,
    DIRECT,
    EVEN,
    FLAT,
    GROUP_OUTPUTS,
    HALO,
    IN_PLACE,
    OUT_WIDTH,
    PARTIAL_BYTES,
    PITCH,
    PLANE_BYTES,
    ROW,
    ROWS_AHEAD,
    RUN,
    SOURCE,
    STEP_BYTES,
    TAP_BYTES,
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    W_FIRST,
    Y_BYTES,
    Y_FIRST,
    Y_PITCH,
    ZERO_BYTES,
)
from partita_cpu.gemm.tile_kernels import ACTIVATE, CONFIGURE, EPILOGUE, FIRST, WIDE, WIDEN
from partita_cpu.jit.intrinsics.address_array import floats_at
from partita_cpu.jit.intrinsics.address_call import (
    call_activate,
    call_convert,
    call_epilogue,
    call_late_tile,
    call_tile,
)
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop

_LOWEST, _HIGHEST = np.float32(-np.inf), np.float32(np.inf)

_MANY = 3
"""Tiles from which on weights are widened once for all of them."""

_ASKING = 8
"""Most tiles of vectors that ask for the weights of the next column.

Each asks for a quarter of them, so that what the third-level cache had no time for is asked for
twice, and more time passes until all are needed.
"""

_SPLIT = int(Arithmetic.BF16X3)  # this and those beyond it have several planes


_PRODUCT = *["int"] * 8, "<i8 1", "<i8 1"
_EPILOGUE = "int", "float", "float", "int", "int", "float", "float"


@loop(apart=(*_PRODUCT, *_EPILOGUE, *["int"] * 10), effort=Effort.CALLS)
def multiply_panel(
    a: int,
    largest: int,
    at: ProductAddresses,
    context: PanelContext,
    epilogue: Epilogue,
    tiles: TileRange,
) -> None:
    """Some rows of the input times some columns of one group.

    Args:
        a: Address of the first row that tiles read.
        largest: The largest absolute value among what was laid out there, as bits.
        at: Weights, bias, residual, result.
        context: Memory, kernels and plan.
        epilogue: What happens to sums.
        tiles: Which rows and columns.
    """
    kernels, p = context.kernels, context.p
    panel = _panel_of(largest, context, tiles)
    wide = kernels[WIDEN] != 0 and panel.lines * panel.tiles >= _MANY
    parts = _asking_of(kernels, wide, panel)
    row, depth, activate = p[ROW], p[DEPTH], kernels[ACTIVATE]
    flat, by_lines = _line_kinds(p)
    direct = (epilogue.code == 0 or activate != 0) and not panel.exact
    last_tile = min(tiles.last_tile, panel.lines * panel.tiles)
    in_runs = direct and not activate and _are_alike(parts, p, panel, tiles)
    # AMX leaves sums in memory; their rows are finished while it computes those of the next tile.
    late = kernels[CONFIGURE] != 0 and not panel.exact
    made, waiting = panel.tile, PendingRows(0, panel.tile + TILE_BYTES, panel.zeros, 0, 0, 0)
    start_tap = tiles.first_tap // p[CHUNK] * p[CHUNK]
    first_line, last_line = tiles.first_tile // panel.tiles, -(-last_tile // panel.tiles)
    for block in range(tiles.first_block, tiles.last_block):
        column, read = _column_of(at, p, tiles.group, block), a + block * p[COLUMN_STEP]
        apart = _distance_of(kernels, p, panel, block == tiles.first_block)
        of_rows = (FIRST if 2 * column.exist <= p[TILE_COLUMNS] else 0) + (WIDE if wide else 0)
        for first_tap in range(start_tap, tiles.last_tap, p[CHUNK]):
            taps = min(p[CHUNK], tiles.last_tap - first_tap)
            ends = first_tap + taps == tiles.last_tap
            packed = column.weights + first_tap * p[TAP_BYTES]
            b, tap_bytes = _weights_of(packed, taps, wide, panel, context)
            nbytes = taps * p[TAP_BYTES]
            # Behind them may lie weights of terms that are added up by another product.
            to_next = p[BLOCK_BYTES] + (start_tap - first_tap) * p[TAP_BYTES] if ends else nbytes
            for line in range(first_line, last_line):
                begin, count = _taps_of(p, tiles, line if by_lines else -1, first_tap, taps)
                places, weights = context.offsets + 8 * begin, b + (begin - first_tap) * tap_bytes
                before = line * panel.tiles
                n, stop = max(before, tiles.first_tile), min(before + panel.tiles, last_tile)
                while n < stop:
                    pixel, rows = _rows_of(n - before, panel, p, tiles.unit)
                    run = _run_of(n, before, stop, panel) if in_runs else 1
                    source = read + line * panel.line_bytes + pixel * row
                    kernel = kernels[of_rows + rows]
                    goes_on = not ends or block + 1 < tiles.last_block + tiles.goes_on
                    ahead = packed + _part_ahead(n, parts, nbytes, to_next, goes_on)
                    partial = panel.partials + n * TILE_BYTES
                    start = partial if first_tap > start_tap else 0
                    if p[IN_PLACE]:
                        tile = source, pixel, rows, of_rows, panel.tile, ahead
                        begin, count, start, ahead = edge_taps(tile, tiles.unit + line, b, context)
                        places, weights = context.offsets + 8 * begin, b + begin * tap_bytes
                    below = rows * run
                    sums = (source, row, places, count, depth, weights, apart, below, start, ahead)
                    y_line = pixel // panel.pitch if flat else line
                    pixel -= y_line * panel.pitch if flat else 0
                    fits = ends and direct and pixel + rows <= panel.width
                    tile = made if ends else partial
                    if late:
                        waiting = _add_late(kernel, activate, sums, tile, waiting, panel, epilogue)
                    elif not fits and not panel.exact:
                        call_tile(kernel, (*sums, tile, 0, 0, 0, 0, 0, _LOWEST, _HIGHEST, 0))
                    if fits:
                        to, other = result_addresses(at, panel, column, epilogue, y_line, pixel)
                        if late:
                            made, waiting = waiting.tile, _waiting_of(rows, made, column, to, other)
                        else:
                            end = rows, column, to, other
                            _add_up(kernel, activate, sums, made, end, panel, epilogue)
                    elif ends:
                        if panel.exact:
                            exact_tile(source, column.weights, tiles, made, context, rows)
                        finish_rows(rows, y_line, pixel, made, at, panel, column, context, epilogue)
                    n += run
    _finish_waiting(kernels, waiting, panel, epilogue)


@loop(inline=True)
def _asking_of(kernels: Array, wide: bool, panel: Panel) -> Any:
    """How many tiles of a column ask for what comes next of the weights."""
    if kernels[CONFIGURE] != 0 or wide:
        return 2
    return max(4, min(_ASKING, panel.lines * panel.tiles))


@loop(inline=True)
def _are_alike(parts: int, p: Array, panel: Panel, tiles: TileRange) -> Any:
    """Whether tiles of as many rows differ by where they lie alone, one below the other.

    Args:
        parts: How many of them ask for weights.
        p: `Plan.table`.
        panel: Says whether rows lie between lines of the result.
        tiles: Which terms are added up.
    """
    at_once = tiles.last_tap - tiles.first_tap // p[CHUNK] * p[CHUNK] <= p[CHUNK]
    return parts == _ASKING and at_once and not p[IN_PLACE] and panel.width == panel.length


@loop(inline=True)
def _taps_of(p: Array, tiles: TileRange, line: int, first: int, count: int) -> Any:
    """The first of some taps that tiles need, and how many they need from there on.

    Args:
        p: `Plan.table`.
        tiles: Which taps are there at all.
        line: The tiles' line, if it may leave some out, or -1.
        first: The first of the taps.
        count: How many there are.
    """
    begin, behind = max(first, tiles.first_tap), first + count
    if line >= 0:
        begin, behind = taps_inside(p, tiles.unit + line, begin, behind)
    return begin, behind - begin


@loop(inline=True)
def _run_of(n: int, before: int, behind: int, panel: Panel) -> Any:
    """How many tiles of as many rows, from this one on, are computed by one call.

    No more than ask for weights, so that each of these asks for its part.

    Args:
        n: The tile.
        before: The first one of its line.
        behind: Behind the last one of these.
        panel: Says how many rows they have.
    """
    place = n - before
    alike = panel.longer if place < panel.longer else panel.tiles
    return min(_ASKING - n % _ASKING, before + alike - n, behind - n)


@loop(inline=True)
def _distance_of(kernels: Array, p: Array, panel: Panel, first: bool) -> Any:
    """What kernels take for the distance from rows to other numbers that they read.

    Those of vectors ask for rows there: the next tile's, in the first column of tiles, so that the
    other columns find all of them in the cache.
    """
    if kernels[CONFIGURE] != 0:
        return p[PLANE_BYTES] if p[ARITHMETIC] >= _SPLIT else p[STEP_BYTES]
    most = panel.even_rows + (1 if panel.longer > 0 else 0)
    return most * p[ROW] if first and p[ROWS_AHEAD] != 0 else 0


@loop(inline=True)
def _weights_of(packed: int, taps: int, wide: bool, panel: Panel, context: PanelContext) -> Any:
    """Where the weights of some taps lie, widened now if they are to be, and bytes of a tap."""
    p = context.p
    if not wide:
        return packed, p[TAP_BYTES]
    b = panel.partials + p[PARTIAL_BYTES]
    call_convert(context.kernels[WIDEN], (packed, taps * p[TAP_BYTES] // 2, b))
    return b, 2 * p[TAP_BYTES]


@loop(inline=True)
def _part_ahead(n: int, parts: int, nbytes: int, to_next: int, goes_on: bool) -> int:
    """How far behind its weights lies what a tile asks for: a part of those that come next."""
    return to_next + n * (nbytes // parts) if n < parts and goes_on else 0


@loop(inline=True)
def _add_up(
    kernel: int,
    activate: int,
    sums: tuple[int, ...],
    tile: int,
    end: tuple[int, Column, int, int],
    panel: Panel,
    epilogue: Epilogue,
) -> None:
    """Computes rows of the result; a tile is memory for their sums.

    Args:
        kernel: Address of the tile kernel.
        activate: Address of the kernel that activates rows; 0 if bounds and a gate are all.
        sums: What the tile kernel reads, up to its tile.
        tile: Address of memory for sums.
        end: Rows, column of outputs, and addresses of the result and of the residual.
        panel: Sizes that hold for the panel.
        epilogue: What is done with sums.
    """
    rows, column, to, other = end
    bounds = np.float32(epilogue.low), np.float32(epilogue.high), epilogue.gate
    where = column.bias, other, to, panel.pixel_bytes, column.exist
    call_tile(kernel, (*sums, tile, *where, *bounds))
    if activate:
        call_activate(activate, (rows, to, panel.pixel_bytes, column.exist))


@loop(inline=True)
def _waiting_of(rows: int, tile: int, column: Column, to: int, other: int) -> PendingRows:
    """Rows whose sums are in a tile, and where they are due."""
    return PendingRows(rows, tile, column.bias, other, to, column.exist)


@loop(inline=True)
def _add_late(
    kernel: int,
    activate: int,
    sums: tuple[int, ...],
    tile: int,
    waiting: PendingRows,
    panel: Panel,
    epilogue: Epilogue,
) -> PendingRows:
    """Leaves sums in a tile, and finishes the rows that wait meanwhile; none does then.

    Args:
        kernel: Address of the tile kernel that finishes other rows meanwhile.
        activate: Address of the kernel that activates rows; 0 if bounds and a gate are all.
        sums: What the tile kernel reads, up to its tile.
        tile: Address of memory for sums.
        waiting: Rows whose sums are there.
        panel: Sizes that hold for the panel.
        epilogue: What is done with sums.
    """
    bounds = np.float32(epilogue.low), np.float32(epilogue.high), epilogue.gate
    of_rows = waiting.bias, waiting.residual, waiting.result, panel.pixel_bytes, waiting.exist
    call_late_tile(kernel, (*sums, tile, *of_rows, *bounds, waiting.tile, waiting.rows))
    if activate and waiting.rows:
        rows = waiting.rows, waiting.result, panel.pixel_bytes, waiting.exist
        call_activate(activate, rows)
    return PendingRows(0, waiting.tile, panel.zeros, 0, 0, 0)


@loop(inline=True)
def _finish_waiting(kernels: Array, waiting: PendingRows, panel: Panel, epilogue: Epilogue) -> None:
    """Finishes the rows of the last tile, which no other one comes behind."""
    if waiting.rows:
        bounds = np.float32(epilogue.low), np.float32(epilogue.high), epilogue.gate
        of_rows = waiting.bias, waiting.residual, waiting.result, panel.pixel_bytes, waiting.exist
        call_epilogue(kernels[EPILOGUE], (waiting.rows, waiting.tile, *of_rows, *bounds))
        if kernels[ACTIVATE]:
            rows = waiting.rows, waiting.result, panel.pixel_bytes, waiting.exist
            call_activate(kernels[ACTIVATE], rows)


@loop(inline=True)
def _line_kinds(p: Array) -> Any:
    """Whether tiles run on over the ends of lines, and whether lines leave out rows of taps."""
    halo = p[SOURCE] == HALO
    return halo and p[FLAT] != 0, halo and p[FLAT] + p[IN_PLACE] == 0


@loop(inline=True)
def _panel_of(largest: int, context: PanelContext, tiles: TileRange) -> Any:
    """Where a panel's tiles lie; clears the bias of zeros."""
    p = context.p
    arithmetic = p[ARITHMETIC]
    # Infinity has no lower half, and may not meet the zeros that fill up a run.
    filled = p[RUN] != p[DEPTH] * p[STEP_BYTES] // 2
    exact = largest >= LARGEST and (arithmetic >= _SPLIT or filled)
    tile = context.memory + p[PLANE_BYTES] * max(arithmetic, 1)
    zeros = tile + 2 * TILE_BYTES
    row_of_zeros = floats_at(zeros, p[TILE_COLUMNS])
    for i in range(row_of_zeros.size):
        row_of_zeros[i] = np.float32(0)
    units = tiles.stop - tiles.unit
    lines, length, width, pitch, first_pixel = 1, units, units, units, tiles.unit
    if p[SOURCE] == HALO:
        width, pitch, first_pixel = p[OUT_WIDTH], p[PITCH], tiles.unit * p[OUT_WIDTH]
        if p[FLAT]:
            length = (units - 1) * pitch + width
            if pitch == width:  # lines lie behind one another
                width, pitch = length, length
        else:
            lines, length = units, width
    count = -(-length // p[TILE_ROWS])
    return Panel(
        tile,
        zeros,
        zeros + ZERO_BYTES,
        exact,
        lines,
        line_bytes(p),
        length,
        count,
        length // count,
        length % count,
        width,
        pitch,
        first_pixel,
        p[Y_BYTES] * p[Y_PITCH],
    )


@loop(inline=True)
def _column_of(at: ProductAddresses, p: Array, group: int, block: int) -> Any:
    """A column of tiles of a group."""
    number, columns = group * p[BLOCKS] + block, p[TILE_COLUMNS]
    first = p[Y_FIRST] + group * p[GROUP_OUTPUTS] + block * columns
    exist = min(columns, p[GROUP_OUTPUTS] - block * columns)
    weights = at.w + number * p[BLOCK_BYTES] + p[W_FIRST]
    return Column(weights, at.bias + 4 * number * columns, exist, p[Y_BYTES] * first)


@loop(inline=True)
def _rows_of(t: int, panel: Panel, p: Array, unit: int) -> Any:
    """The first row of a tile, counted from that of its line, and how many rows it has."""
    length, most = panel.length, p[TILE_ROWS]
    if p[EVEN]:
        more = 1 if t < panel.longer else 0
        return t * panel.even_rows + min(t, panel.longer), panel.even_rows + more
    first = t * most
    rows = min(most, length - first)
    if p[ARITHMETIC] and p[SOURCE] == DIRECT and rows < most and rows != 16:
        # Tiles are read as a whole: the last one begins before the one ends.
        first = max(length - (most if rows > 16 else 16), -unit)
        rows = length - first
    return first, rows
