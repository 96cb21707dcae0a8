"""How threads share the tiles of a product: as a grid of shares, some down and some across."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from partita_cpu.jit.loop_kernel import loop

UNEVEN = 1.1
"""How much longer than in the best grid the longest share may take, if threads then read less."""


def shares_across(
    down: int,
    across: int,
    threads: int,
    weight: float,
    tiles: Callable[[int], float] = float,
    laying: float = 0.0,
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
        laying: Time in which rows are laid out, over the time of one column of their tiles; every
            share across lays out its rows.
        enough: Tiles of a share in one column behind which it does not wait for weights.

    Returns:
        From 1 for rows alone to `threads` for columns alone.
    """
    down, across = max(1, down), max(1, across)

    def longest(count: int) -> float:
        return tiles(-(-down // (threads // count))) * (laying + -(-across // count))

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
