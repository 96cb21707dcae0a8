"""How threads divide the result of a product: a grid of shares, each cut into panels and tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from partita.lowering import Array
from partita_cpu.gemm.product_records import ALL_TILES, TileRange
from partita_cpu.gemm.tile_fields import (
    BLOCKS,
    EVEN,
    FLAT,
    GRAIN,
    GROUP_OUTPUTS,
    HALO,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTPUTS,
    PANEL_UNITS,
    PITCH,
    SHARES_ACROSS,
    SOURCE,
    TAPS,
    TILE_ROWS,
    UNITS,
)
from partita_cpu.gemm.tile_kernels import WIDEN
from partita_cpu.jit.loop_kernel import loop

UNEVEN = 1.1
"""How much longer than in the best grid the longest share may take, if threads then read less."""


def shares_across(
    down: int,
    across: int,
    threads: int,
    weight: float,
    tiles: Callable[[int], float] = float,
    copy_cost: float = 0.0,
    enough: float = math.inf,
) -> int:
    """Shares across of the grid in which threads are done soonest.

    If all have enough tiles in a column, weights are fetched while tiles are computed, and rows
    stay with the thread that computed them. Else a thread reads the rows of the left matrix of its
    share and the columns of the right one: of grids whose longest shares hardly differ, the one is
    best in which a thread reads least.

    Args:
        down: Pieces that rows can be shared in.
        across: Columns of tiles.
        threads: How many share them.
        weight: Bytes of the right matrix over those of the left one and of the result.
        tiles: Tiles of one column that so many pieces have.
        copy_cost: Time in which rows are laid out, over the time of one column of their tiles;
            every share across lays out its rows.
        enough: Tiles of a share in one column behind which it does not wait for weights.

    Returns:
        From 1 for rows alone to `threads` for columns alone.
    """
    down, across = max(1, down), max(1, across)

    def longest(count: int) -> float:
        return tiles(-(-down // (threads // count))) * (copy_cost + -(-across // count))

    def read(count: int) -> float:
        rows = -(-down // (threads // count)) / down
        return rows + weight * -(-across // count) / across

    counts = range(1, threads + 1)
    bound = UNEVEN * min(map(longest, counts))
    if longest(1) <= bound and tiles(down // threads) >= enough:
        return 1
    return min((count for count in counts if longest(count) <= bound), key=read)


@loop(inline=True)
def own_share(shares: int, tid: int, threads: int, down: int, across: int) -> Any:
    """A thread's rows and columns of a grid: first and behind the last one of each.

    Args:
        shares: Across; fewer if there are fewer threads.
        tid: This thread.
        threads: All of them.
        down: Pieces that rows can be shared in.
        across: Columns of tiles.
    """
    count = min(shares, threads)
    rows = threads // count
    row, column = tid // count, tid % count
    if row >= rows:
        return 0, 0, 0, 0
    first, last = across * column // count, across * (column + 1) // count
    return down * row // rows, down * (row + 1) // rows, first, last


class Area(NamedTuple):
    """A share of the result.

    Attributes:
        unit: Its first row.
        end: Behind the last one.
        first_block: First column of tiles, counted through all groups.
        last_block: Behind the last one.
    """

    unit: int
    end: int
    first_block: int
    last_block: int


@loop(inline=True)
def area_of(p: Array, share: int, threads: int) -> Any:
    """One of the shares that so many threads have."""
    units, grain = p[UNITS], p[GRAIN]
    all_blocks = p[OUTPUTS] // p[GROUP_OUTPUTS] * p[BLOCKS]
    grains = -(-units // grain)
    top, bottom, first, last = own_share(p[SHARES_ACROSS], share, threads, grains, all_blocks)
    if p[EVEN]:  # tiles may have any number of rows
        return Area(units * top // grains, units * bottom // grains, first, last)
    return Area(top * grain, min(bottom * grain, units), first, last)


@loop(inline=True)
def panel_end(p: Array, unit: int, end: int) -> Any:
    """Behind the last row of the panel that begins with one."""
    stop = min(unit + p[PANEL_UNITS], end)
    if p[SOURCE] == HALO:
        stop = min(stop, (unit // p[OUT_HEIGHT] + 1) * p[OUT_HEIGHT])
    return stop


@loop(inline=True)
def pieces_of(area: Area, kernels: Array, p: Array) -> Any:
    """How many pieces of work a share has."""
    pieces, unit = 0, area.unit
    while unit < area.end:
        stop = panel_end(p, unit, area.end)
        pieces += pieces_of_column(kernels, p, stop - unit)
        unit = stop
    return pieces * (area.last_block - area.first_block)


@loop(inline=True)
def pieces_of_column(kernels: Array, p: Array, units: int) -> Any:
    """Tiles of one column of so many rows; 1 where its weights are widened for all of them."""
    if kernels[WIDEN]:
        return 1
    rows, width = p[TILE_ROWS], p[OUT_WIDTH]
    if p[SOURCE] != HALO:
        return -(-units // rows)
    if p[FLAT]:
        return -(-((units - 1) * p[PITCH] + width) // rows)
    return units * -(-width // rows)


@loop(inline=True)
def tiles_of(
    area: Area, p: Array, unit: int, stop: int, piece: int, last: int, of_column: int
) -> Any:
    """Tiles of a panel from a piece on: whole columns of a group, or some of one column.

    Args:
        area: The share.
        p: `Plan.table`.
        unit: First row of the panel.
        stop: Behind its last one.
        piece: The first piece, counted through the panel's columns.
        last: Behind the last one that is wanted; may lie behind the panel.
        of_column: Pieces of a column.
    """
    column = piece // of_column
    inside = piece - column * of_column
    block = area.first_block + column
    group = block // p[BLOCKS]
    block -= group * p[BLOCKS]
    end = min(area.last_block - group * p[BLOCKS], p[BLOCKS])
    count = min((last - piece) // of_column, end - block)
    taps = 0, p[TAPS]
    if inside == 0 and count > 0:
        goes_on = 1 if block + count < end else 0
        return TileRange(group, block, block + count, unit, stop, 0, ALL_TILES, goes_on, *taps)
    goes_on = 1 if block + 1 < end else 0
    behind = min(inside + last - piece, of_column)
    return TileRange(group, block, block + 1, unit, stop, inside, behind, goes_on, *taps)


@loop(inline=True)
def rows_under(p: Array, tiles: TileRange, count: int) -> Any:
    """Rows of a panel that some tiles of its columns are computed of: first and behind the last.

    Args:
        p: `Plan.table`, of tiles that may have any number of rows.
        tiles: Those of the panel.
        count: Tiles of a column.
    """
    units, width, pitch = tiles.stop - tiles.unit, p[OUT_WIDTH], p[PITCH]
    if tiles.last_tile == ALL_TILES:
        return 0, units
    if p[SOURCE] == HALO and p[FLAT] == 0:
        across = count // units
        return tiles.first_tile // across, -(-tiles.last_tile // across)
    length = (units - 1) * pitch + width if p[SOURCE] == HALO else units
    even, longer = length // count, length % count
    first = tiles.first_tile * even + min(tiles.first_tile, longer)
    behind = tiles.last_tile * even + min(tiles.last_tile, longer)
    if p[SOURCE] == HALO:
        return first // pitch, min((behind - 1) // pitch + 1, units)
    return first, behind
