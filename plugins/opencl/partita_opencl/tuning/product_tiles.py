"""Which tiles a product is cut into, and in how many parts its sums, for a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita_opencl.device.limits import Limits


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

    def options(self) -> dict[str, int | None]:
        """The kernel's macros."""
        sizes = {"BM": self.high, "BN": self.wide, "BK": self.deep}
        return {**sizes, "TM": self.parts[0], "TN": self.parts[1]}

    def time(self, option: Cut, together: float) -> float:
        """About how long a product takes that is cut so, with so many groups to a compute unit.

        Constants are fitted to 2800 cuts of 36 products of float32 and float16: in the mean the
        best cut was 6 % faster than the one chosen.
        """
        time = option.per_split / self.deep * math.hypot(self.latency, self.work * together)
        time += 1.9 * option.results
        return time if option.splits == 1 else time + _handed_over(option, 1.34, 0.28, 1.8)

    def count(self, rows: int, columns: int, batches: int) -> int:
        """Tiles that cover the results."""
        return batches * math.ceil(rows / self.high) * math.ceil(columns / self.wide)

    def splits(self, limits: Limits) -> bool:
        """Whether sums may be cut in parts on a device."""
        return True

    def takes(self, columns: int) -> bool:
        """Whether results may have so many columns."""
        return True


@dataclass(frozen=True)
class StagedTile(Tile):
    """The work of a group whose tiles come by copies that arrive later; a warp has 4 x 8 items.

    Attributes:
        stages: Tiles in local memory at a time.
    """

    stages: int

    @property
    def local_bytes(self) -> int:
        """Local memory of a group."""
        return self.stages * super().local_bytes // 2

    def options(self) -> dict[str, int | None]:
        """The kernel's macros."""
        return {**super().options(), "STAGES": self.stages}

    def time(self, option: Cut, together: float) -> float:
        """As of other tiles; fitted to 17 cuts of 10 products.

        Two groups share a compute unit, and a third one takes as long as two. Other tiles take less
        time than is expected of them where products are small, which is made up for here.
        """
        groups = math.ceil(together)
        pairs = groups + groups % 2 if groups > 2 else groups
        return super().time(option, pairs) + OVER_SMALL

    def takes(self, columns: int) -> bool:
        """Only whole vectors."""
        return columns % 4 == 0


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

    def options(self) -> dict[str, int | None]:
        """The kernel's macros."""
        sizes = {"BM": self.high, "BN": self.wide, "BK": self.deep}
        return {**sizes, "WM": self.parts[0], "WN": self.parts[1]}

    def splits(self, limits: Limits) -> bool:
        """Only where a group can add up what others summed."""
        return limits.hands_over


@dataclass(frozen=True)
class StreamTile(Tile):
    """The work of a group of ``product_stream.cl``; rows are pixels, parts are warps along both.

    Attributes:
        stages: Tiles in local memory at a time.
        warpgroup: Whether four warps multiply together by wgmma.
        start: Time of a group beside its steps, if it has a compute unit for itself.
        store: The same per group where many groups share a compute unit.
        bulk: Whether the copy engine brings tiles; the work is one of ``product_bulk.cl``.
    """

    stages: int
    warpgroup: bool
    start: float
    store: float
    bulk: bool = False

    @property
    def items(self) -> int:
        """Items of a group."""
        return 32 * self.parts[0] * self.parts[1]

    @property
    def local_bytes(self) -> int:
        """Local memory of a group: tiles or results of halves, and what is added to columns."""
        tiles = self.stages * 2 * self.deep * (self.high + self.wide)
        if self.bulk:
            return tiles + self.items // 32 * 2048 + 1024
        return max(tiles, self.result_bytes) + 4 * self.wide + 64

    @property
    def result_bytes(self) -> int:
        """Local memory of the results, which a residual needs early if there is room."""
        return 2 * self.high * (self.wide + 8)

    def options(self) -> dict[str, int | None]:
        """The kernel's macros."""
        rows, columns = self.parts
        options: dict[str, int | None] = {"BM": self.high, "BN": self.wide, "STAGES": self.stages}
        options |= {"WM": rows, "WN": columns}
        kinds = {"WARPGROUP": self.warpgroup, "BULK": self.bulk}
        return {**options, **{name: None for name, of_this in kinds.items() if of_this}}

    def splits(self, limits: Limits) -> bool:
        """As of tiles for matrix units, but none that the copy engine brings."""
        return limits.hands_over and not self.bulk

    def time(self, option: Cut, together: float) -> float:
        """As of other tiles; fitted to 1600 cuts of 67 products of float16: 3 % in the mean.

        Tiles that the copy engine brings were fitted beside these, to 150 cuts of 25 products.
        """
        steps = option.per_split / self.deep
        alone, shared = steps * self.latency + self.start, steps * self.work + self.store
        time = math.hypot(alone, shared * together)
        return time if option.splits == 1 else time + _handed_over(option, 1.2, 0.156, 2.2)


DEEP = 16
"""Terms of all tiles."""

STREAM_DEEP = 64
"""Terms of all tiles that stream."""

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
    StagedTile(128, 128, 8, (16, 8), 0.5, 0.68, 4),
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

_RUN_TILE = StreamTile(32, 64, 64, (2, 2), 0.182, 0.166, 4, False, 3.386, 0.373)

STREAM_TILES: tuple[StreamTile, ...] = (
    StreamTile(32, 32, 64, (2, 2), 0.155, 0.104, 4, False, 3.414, 0.278),
    _RUN_TILE,
    StreamTile(64, 32, 64, (4, 1), 0.113, 0.142, 6, True, 3.581, 0.462),
    StreamTile(64, 64, 64, (2, 2), 0.205, 0.245, 4, False, 3.73, 0.688),
    StreamTile(64, 64, 64, (4, 1), 0.085, 0.193, 6, True, 3.852, 0.788),
    StreamTile(64, 128, 64, (2, 4), 0.198, 0.536, 4, False, 3.829, 0.953),
    StreamTile(64, 128, 64, (4, 1), 0.045, 0.397, 5, True, 4.871, 1.207),
    StreamTile(128, 64, 64, (4, 2), 0.205, 0.508, 4, False, 3.98, 1.219),
    StreamTile(128, 64, 64, (8, 1), 0.068, 0.33, 4, True, 3.922, 1.452),
    StreamTile(128, 128, 64, (8, 1), 0.014, 0.433, 4, True, 4.297, 2.804),
    StreamTile(128, 256, 64, (8, 1), 0.037, 0.69, 4, True, 1.841, 5.0),
    StreamTile(64, 64, 64, (4, 1), 0.189, 0.122, 4, True, 4.422, 0.627, True),
    StreamTile(64, 128, 64, (4, 1), 0.068, 0.167, 8, True, 4.5, 1.974, True),
    StreamTile(128, 128, 64, (8, 1), 0.104, 0.279, 6, True, 4.557, 2.649, True),
    StreamTile(128, 192, 64, (8, 1), 0.083, 0.455, 4, True, 4.723, 3.099, True),
    StreamTile(128, 256, 64, (8, 1), 0.1, 0.524, 4, True, 3.509, 4.972, True),
    StreamTile(192, 128, 64, (12, 1), 0.067, 0.458, 4, True, 4.286, 3.367, True),
)
"""Tiles of halves that stream through matrix units."""

CPU_STREAM_TILES = (StreamTile(32, 32, 64, (2, 2), 0.155, 0.104, 3, False, 3.414, 0.278),)

CPU_TILES = (Tile(32, 32, DEEP, (4, 4), 0.531, 0.155),)
"""One for CPUs, where only tests cut work by tiles: a driver there takes seconds per program."""

_MOST_SPLITS = 32
OVER_SMALL = 15.0
"""Microseconds by which tiles that come later must be better; see :meth:`StagedTile.time`."""

_FEWEST_STEPS = 4
"""Steps of a part of the sums, at least."""


@dataclass(frozen=True)
class Cut:
    """How a product is cut.

    Attributes:
        tile: Rows and columns that a group computes.
        tiles: How many there are of them.
        splits: In how many parts the sums are cut.
        per_split: Terms of a part.
    """

    tile: Tile
    tiles: int
    splits: int
    per_split: int

    @property
    def name(self) -> str:
        """What tells it from other cuts of the same product."""
        kind = type(self.tile).__name__
        options = "-".join(f"{name}{value or ''}" for name, value in self.tile.options().items())
        return f"{kind}-{options}-S{self.splits}"

    def time(self, limits: Limits) -> float:
        """About how long it takes, in microseconds of an NVIDIA H200.

        On other devices the times matter relative to one another only.
        """
        groups = self.tiles * self.splits / limits.compute_units
        # Groups that share a compute unit hide each other's latency; a last round leaves some idle.
        return self.tile.time(self, (max(groups, 1.0) + math.ceil(groups)) / 2)

    @property
    def results(self) -> float:
        """Millions of results, those past the ends included."""
        return self.tiles * self.tile.high * self.tile.wide / 1e6


def tiles_for(
    limits: Limits,
    *,
    matrix: bool = False,
    warpgroups: bool | None = None,
    bulk: bool = False,
    staged: bool = False,
) -> list[Tile]:
    """The tiles that a device can use; at least one.

    Args:
        limits: What the device can do.
        matrix: Whether to use matrix units.
        warpgroups: Whether tiles that stream through them may use wgmma; ``None``: no such tiles.
        bulk: Whether the copy engine may bring those that use wgmma.
        staged: Whether those of float32 may come by copies that arrive later.
    """
    tiles: Sequence[Tile] = TILES
    if warpgroups is not None:
        tiles = CPU_STREAM_TILES if limits.is_cpu else STREAM_TILES
        tiles = [
            tile
            for tile in tiles
            if isinstance(tile, StreamTile)
            and (warpgroups or not tile.warpgroup)
            and (bulk or not tile.bulk)
        ]
    elif matrix:
        tiles = MATRIX_TILES[:1] if limits.is_cpu else MATRIX_TILES
    elif limits.is_cpu:
        tiles = CPU_TILES
    return [
        tile
        for tile in tiles
        if tile.items <= limits.group_items
        and tile.local_bytes <= limits.kernel_local_bytes
        and (staged or not isinstance(tile, StagedTile))
    ]


def run_tile(limits: Limits) -> StreamTile:
    """The tile of products that one kernel computes one after another."""
    return CPU_STREAM_TILES[0] if limits.is_cpu else _RUN_TILE


def ranked(
    limits: Limits,
    tiles: Sequence[Tile],
    rows: int,
    columns: int,
    depth: int,
    batches: int,
    *,
    unit: int = 0,
) -> list[Cut]:
    """All cuts, the one that should take the least time first.

    Args:
        limits: What the device can do.
        tiles: The tiles to choose from.
        rows: Rows of the result.
        columns: Columns of the result.
        depth: Terms of the sums.
        batches: How many products.
        unit: Terms of which a tile must take a part that divides them, or 0.
    """
    cuts = [
        option
        for tile in tiles
        if unit % tile.deep == 0 and tile.takes(columns)
        for option in cuts_of(limits, tile, rows, columns, depth, batches)
    ]
    return sorted(cuts, key=lambda option: option.time(limits))


def cut(limits: Limits, tiles: Sequence[Tile], *sizes: int) -> Cut:
    """The cut that should take the least time; for the arguments see :func:`ranked`."""
    return ranked(limits, tiles, *sizes)[0]


def cut_whole(
    limits: Limits, tiles: Sequence[Tile], rows: int, columns: int, depth: int
) -> Cut | None:
    """The cut whose groups should be done first if each keeps all its terms in local memory.

    ``None`` where no group can. Groups have a compute unit for themselves, and normalize a row in
    about 0.1 microseconds before they start.
    """
    steps = math.ceil(depth / STREAM_DEEP)
    best: tuple[float, Cut] | None = None
    for tile in tiles:
        if not isinstance(tile, StreamTile):
            continue
        if replace(tile, stages=steps).local_bytes > limits.kernel_local_bytes:
            continue
        option = Cut(tile, tile.count(rows, columns, 1), 1, steps * tile.deep)
        rounds = math.ceil(option.tiles / limits.compute_units)
        time = rounds * (tile.time(option, 1.0) + 0.1 * tile.high / math.prod(tile.parts))
        if best is None or time < best[0]:
            best = time, option
    return None if best is None else best[1]


def cuts_of(
    limits: Limits, tile: Tile, rows: int, columns: int, depth: int, batches: int
) -> list[Cut]:
    """The ways to cut a product's sums into parts, each of a number of steps.

    Args:
        limits: The device's.
        tile: What a group computes at a time.
        rows: Of the result.
        columns: Likewise.
        depth: Terms of a sum.
        batches: Products of these sizes.
    """
    tiles = tile.count(rows, columns, batches)
    steps = math.ceil(depth / tile.deep)
    found = {}
    for wanted in (1, 2, 3, 4, 6, 8, 12, 16, 24, _MOST_SPLITS) if tile.splits(limits) else (1,):
        if wanted == 1 or steps >= wanted * _FEWEST_STEPS:
            per_split = math.ceil(steps / wanted)
            splits = math.ceil(steps / per_split)
            found[splits] = Cut(tile, tiles, splits, per_split * tile.deep)
    return list(found.values())


def _handed_over(option: Cut, once: float, per_part: float, per_sum: float) -> float:
    """Time to hand parts over: of any, per part, and per million sums."""
    return once + per_part * option.splits + per_sum * option.results * option.splits
