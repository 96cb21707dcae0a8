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
        latency: Time of a step of a group that has a compute unit for itself.
        work: Time of a step per group where many groups share a compute unit.
    """

    high: int
    wide: int
    deep: int
    item_high: int
    item_wide: int
    latency: float
    work: float

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
    Tile(64, 64, DEEP, 8, 4, 0.588, 0.526),
    Tile(64, 64, DEEP, 4, 4, 0.551, 0.547),
    Tile(64, 32, DEEP, 4, 4, 0.564, 0.277),
    Tile(32, 64, DEEP, 4, 4, 0.588, 0.277),
    Tile(32, 32, DEEP, 4, 4, 0.531, 0.155),
    Tile(16, 64, DEEP, 4, 4, 0.581, 0.165),
    Tile(128, 64, DEEP, 8, 8, 0.769, 0.968),
    Tile(128, 128, DEEP, 8, 8, 0.139, 1.764),
)
"""Tiles for GPUs; the first fits every device that has local tiles at all."""

_CPU_TILES = (Tile(32, 32, DEEP, 4, 4, 0.531, 0.155),)
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


_HAND_OVER = (1.34, 0.28, 1.8)
"""Time to hand parts over: of any, per part, and per million sums."""

_STORE = 1.9
"""Time per million results."""


def _time(limits: Limits, option: Cut) -> float:
    """About how long a cut takes, in microseconds of one device.

    Constants are fitted to 1500 cuts of 36 products measured on an NVIDIA H200: its best cut was
    at most 5 % faster than the one chosen, in the mean. They matter relative to one another only.
    """
    tile = option.tile
    steps = option.per_split / tile.deep
    results = option.tiles * tile.high * tile.wide / 1e6
    groups = option.tiles * option.splits / limits.compute_units
    # Groups that share a compute unit hide each other's latency; a last round leaves some idle.
    together = (max(groups, 1.0) + math.ceil(groups)) / 2
    time = steps * math.hypot(tile.latency, tile.work * together) + _STORE * results
    if option.splits > 1:
        once, per_part, per_sum = _HAND_OVER
        time += once + per_part * option.splits + per_sum * results * option.splits
    return time
