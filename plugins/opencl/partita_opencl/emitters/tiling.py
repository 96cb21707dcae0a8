"""Which tiles a product is cut into, and in how many parts its sums, for a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from partita_opencl.devices import Limits


@dataclass(frozen=True)
class Tile:
    """The work of a group.

    Attributes:
        high: Rows of the result.
        wide: Columns of the result.
        deep: Terms of the sums that are in local memory at a time.
        parts: Rows and columns of one item; or, of a tile for matrix units, warps along both.
        latency: Time of a step of a group that has a compute unit for itself.
        work: Time of a step per group where many groups share a compute unit.
    """

    high: int
    wide: int
    deep: int
    parts: tuple[int, int]
    latency: float
    work: float

    @property
    def items(self) -> int:
        """Items of a group."""
        return self.high // self.parts[0] * (self.wide // self.parts[1])

    @property
    def local_bytes(self) -> int:
        """Local memory of a group."""
        return 2 * 4 * self.deep * (self.high + 4 + self.wide)

    def options(self) -> dict[str, int]:
        """The kernel's macros."""
        sizes = {"BM": self.high, "BN": self.wide, "BK": self.deep}
        return {**sizes, "TM": self.parts[0], "TN": self.parts[1]}

    def count(self, rows: int, columns: int, batches: int) -> int:
        """Tiles that cover the results."""
        return batches * math.ceil(rows / self.high) * math.ceil(columns / self.wide)


class MatrixTile(Tile):
    """The work of a group that computes with matrix units, by warps of 32 items."""

    @property
    def items(self) -> int:
        """Items of a group."""
        return 32 * self.parts[0] * self.parts[1]

    @property
    def local_bytes(self) -> int:
        """Local memory of a group; rows are padded by eight elements along either dimension."""
        b = self.deep * (self.wide + 8)
        return 2 * 2 * (b + max(self.deep * (self.high + 8), self.high * (self.deep + 8)))

    def options(self) -> dict[str, int]:
        """The kernel's macros."""
        sizes = {"BM": self.high, "BN": self.wide, "BK": self.deep}
        return {**sizes, "WM": self.parts[0], "WN": self.parts[1]}


DEEP = 16
"""Terms of all tiles."""

MATRIX_DEEP = 32
"""Terms of all tiles for matrix units, or a part of them."""

TILES = (
    Tile(64, 64, DEEP, (8, 4), 0.588, 0.526),
    Tile(64, 64, DEEP, (4, 4), 0.551, 0.547),
    Tile(64, 32, DEEP, (4, 4), 0.564, 0.277),
    Tile(32, 64, DEEP, (4, 4), 0.588, 0.277),
    Tile(32, 32, DEEP, (4, 4), 0.531, 0.155),
    Tile(16, 64, DEEP, (4, 4), 0.581, 0.165),
    Tile(128, 64, DEEP, (8, 8), 0.769, 0.968),
    Tile(128, 128, DEEP, (8, 8), 0.139, 1.764),
)
"""Tiles for GPUs; the first fits every device that has local tiles at all."""

MATRIX_TILES = (
    MatrixTile(32, 32, 32, (2, 2), 0.326, 0.082),
    MatrixTile(32, 32, 64, (2, 2), 0.533, 0.184),
    MatrixTile(32, 64, 32, (2, 2), 0.414, 0.119),
    MatrixTile(32, 64, 64, (2, 2), 0.637, 0.244),
    MatrixTile(64, 32, 32, (2, 2), 0.36, 0.141),
    MatrixTile(64, 32, 64, (2, 2), 0.491, 0.288),
    MatrixTile(64, 64, 32, (2, 2), 0.456, 0.212),
    MatrixTile(64, 64, 64, (2, 2), 0.713, 0.385),
    MatrixTile(128, 64, 32, (2, 2), 0.58, 0.323),
    MatrixTile(128, 128, 32, (4, 2), 0.075, 0.83),
)
"""Tiles for matrix units."""

_CPU_TILES = (Tile(32, 32, DEEP, (4, 4), 0.531, 0.155),)
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


def cut(
    limits: Limits,
    rows: int,
    columns: int,
    depth: int,
    batches: int,
    *,
    matrix: bool = False,
    unit: int = 0,
) -> Cut:
    """The cut that should take the least time.

    Args:
        limits: What the device can do.
        rows: Rows of the result.
        columns: Columns of the result.
        depth: Terms of the sums.
        batches: How many products.
        matrix: Whether to use matrix units.
        unit: Terms of which a tile must take a part that divides them, or 0.
    """
    tiles: Sequence[Tile] = TILES
    if matrix:
        tiles = MATRIX_TILES[:1] if limits.is_cpu else MATRIX_TILES
    elif limits.is_cpu:
        tiles = _CPU_TILES
    cuts = [
        option
        for tile in tiles
        if tile.items <= limits.group_items and tile.local_bytes <= limits.local_bytes
        if unit % tile.deep == 0
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

    Constants are fitted to 2800 cuts of 36 products of float32 and float16 measured on an NVIDIA
    H200: in the mean the best cut was 6 % faster than the one chosen. They matter relative to one
    another only.
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
