"""Which tiles a product is cut into, and in how many parts its sums, for a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from partita_opencl.devices import Limits


@dataclass(frozen=True)
class Tile:
    """The work of a group.

    Attributes:
        high: Rows of the result.
        wide: Columns of the result.
        deep: Terms of the sums that are in local memory at a time.
        item_high: Rows of one item.
        item_wide: Columns of one item.
    """

    high: int
    wide: int
    deep: int
    item_high: int
    item_wide: int

    @property
    def items(self) -> int:
        """Items of a group."""
        return self.high // self.item_high * (self.wide // self.item_wide)

    @property
    def local_bytes(self) -> int:
        """Local memory of a group."""
        return 2 * 4 * self.deep * (self.high + 4 + self.wide)

    def options(self) -> dict[str, int]:
        """The kernel's macros."""
        return {
            "BM": self.high,
            "BN": self.wide,
            "BK": self.deep,
            "TM": self.item_high,
            "TN": self.item_wide,
        }

    def count(self, rows: int, columns: int, batches: int) -> int:
        """Tiles that cover the results."""
        return batches * math.ceil(rows / self.high) * math.ceil(columns / self.wide)


DEEP = 16
"""Terms of all tiles."""

TILES = (
    Tile(64, 64, DEEP, 8, 4),
    Tile(64, 64, DEEP, 4, 4),
    Tile(32, 64, DEEP, 4, 4),
    Tile(64, 32, DEEP, 4, 4),
    Tile(32, 32, DEEP, 4, 4),
    Tile(16, 64, DEEP, 4, 4),
    Tile(128, 64, DEEP, 8, 8),
    Tile(128, 128, DEEP, 8, 8),
)
"""Tiles for GPUs; the first fits every device that has local tiles at all."""

_CPU_TILES = (Tile(32, 32, DEEP, 4, 4),)
"""One for CPUs, where only tests cut work by tiles: a driver there takes seconds per program."""

_MOST_SPLITS = 32
_FEWEST_STEPS = 4
"""Steps of a part of the sums, at least."""


@dataclass(frozen=True)
class Cut:
    """How a product is cut.

    Attributes:
        tile: The tile.
        tiles: How many.
        splits: In how many parts the sums are cut.
        per_split: Terms of a part.
    """

    tile: Tile
    tiles: int
    splits: int
    per_split: int


def cut(limits: Limits, rows: int, columns: int, depth: int, batches: int) -> Cut:
    """The cut that should take the least time."""
    cuts = [
        option
        for tile in (_CPU_TILES if limits.is_cpu else TILES)
        if tile.items <= limits.group_items and tile.local_bytes <= limits.local_bytes
        for option in _cuts(tile, rows, columns, depth, batches)
    ]
    return min(cuts, key=lambda option: _time(limits, option))


def _cuts(tile: Tile, rows: int, columns: int, depth: int, batches: int) -> list[Cut]:
    tiles = tile.count(rows, columns, batches)
    steps = math.ceil(depth / tile.deep)
    found = {}
    for wanted in (1, 2, 3, 4, 6, 8, 12, 16, 24, _MOST_SPLITS):
        if wanted == 1 or steps >= wanted * _FEWEST_STEPS:
            per_split = math.ceil(steps / wanted)
            splits = math.ceil(steps / per_split)
            found[splits] = Cut(tile, tiles, splits, per_split * tile.deep)
    return list(found.values())


def _time(limits: Limits, option: Cut) -> float:
    """Relative time of a cut: rounds of groups, their steps, and handing over the parts."""
    tile, units = option.tile, limits.compute_units
    groups = option.tiles * option.splits
    steps = option.per_split / tile.deep
    work = tile.high * tile.wide * tile.deep / 128  # cycles of a step if nothing else held it up
    latency = 250.0
    resident = max(1, min(2048 // tile.items, 16))
    rounds = math.ceil(groups / (units * resident))
    per_unit = math.ceil(groups / units)
    one = steps * max(latency, work)
    busy = per_unit * steps * work * 1.5
    hand_over = 0 if option.splits == 1 else 1500 + 150 * option.splits
    return max(rounds * one, busy) + hand_over
