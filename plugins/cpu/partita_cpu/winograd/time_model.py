"""A time model: where Winograd's filtering beats direct products, and how threads share it.

Times are counted in what a row of a tile takes for one channel: two vectors of products. Three
things limit the gain: transforms, which pay for themselves by many channels and outputs; weights,
which take 16/9 or 4 times the memory, and are read again for every panel of tiles; and tiles at the
edges of an image, which lie outside in part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from partita.lowering.shapes.symbolic_size import (
    evaluated,
    has_varied,
    holds_sizes,
    present,
    settled,
)
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.llvm.images.winograd import POINTS, TAPS, pixels_of
from partita_cpu.machine_model import MachineModel

PANEL_SHARE = 3 / 4
"""Of the second-level cache, for transformed pixels and sums of the tiles that are computed at a
time."""

FAR_PANEL_SHARE = 1 / 2
"""The same of a core's part of the third-level cache, where few tiles have room in the second: then
each row is read from there for every column of outputs, but weights are read less often."""

READ = 1 / 8
"""Time to read a byte of weights from beyond the second-level cache: 30 GB/s for each thread."""

READ_AGAIN = 1 / 32
"""Time to read a byte from there in addition that was written or read shortly before."""

ARRIVAL = 3 / 8
"""The same from memory, for weights of the first panel that meets them: at 11 GB/s for each thread,
which a panel of few tiles waits for."""

PASSED = 1 / 2
"""Of the time to read rows from the third-level cache, what does not pass while others are
multiplied."""

CALL = 60.0
"""Time to begin and end a tile of products of one point."""

INPUT_TRANSFORM, OUTPUT_TRANSFORM = 3.0, 6.0
"""Time for a vector of channels and one of outputs, for each point of a tile."""

BFLOAT16_PACE = 2
"""How many times as fast as in float32 vectors multiply bfloat16, whose weights are half as
large."""

GAIN = 1.1
"""How many times less time is worth the memory that weights take."""

GAIN_OF_LARGER = 1.15
"""How many times less time tiles of 4 x 4 have to take than those of 2 x 2, whose weights take less
than half the memory."""

CLOSE = 1.1
"""How many times as long as the best tile that of another size may take, to share its program."""

CLOSE_ENOUGH = 1.5
"""The same once sizes have decided otherwise: a program for each size takes longer to make."""


class Sizes(NamedTuple):
    """What times depend on.

    Attributes:
        batch: Images.
        height: Of the result.
        width: Of the result.
        channels: Of the input.
        outputs: Channels of the result.
        threads: Threads.
        lanes: Floats of a vector.
        columns: Of a tile of products.
        rows: Of such a tile.
        near: Bytes for a panel in the second-level cache.
        far: Bytes for it in the third-level one.
        pace: How many times as fast as in float32 direct products are.
        largest: Results down and across the largest tile that may be.
        parts: In how many parts vectors are computed: with two a row of a tile takes twice as long,
            while memory is as fast.
    """

    batch: int
    height: int
    width: int
    channels: int
    outputs: int
    threads: int
    lanes: int
    columns: int
    rows: int
    near: int
    far: int
    pace: int = 1
    largest: int = max(POINTS)
    parts: int = 1

    @classmethod
    def of(
        cls,
        images: Images,
        machine: MachineModel,
        threads: int,
        direct: Arithmetic = Arithmetic.F32,
        largest: int = max(POINTS),
    ) -> Sizes:
        """Those of a convolution whose direct products are computed so."""
        level = machine.level
        return cls(
            images.batch,
            images.out_height,
            images.out_width,
            images.channels,
            images.outputs,
            threads,
            level.lanes,
            tile_columns(level),
            machine.tile_rows,
            machine.l2_bytes(PANEL_SHARE),
            int(machine.caches.l3 * FAR_PANEL_SHARE),
            BFLOAT16_PACE if direct is Arithmetic.BF16 else 1,
            largest,
            2 if machine.halves_vectors and level.lanes == 16 else 1,
        )

    def reading(self, rate: float) -> float:
        """Time for a byte that takes so long where vectors are computed whole."""
        return rate / self.parts

    @property
    def blocks(self) -> int:
        """Columns of tiles."""
        return -(-self.outputs // self.columns)

    def computed(self, blocks: int) -> float:
        """Columns whose time so many take: half of one where a vector has the last outputs."""
        left = self.outputs - (self.blocks - 1) * self.columns
        return blocks - (0.5 if blocks == self.blocks and 2 * left <= self.columns else 0.0)


def side_for(
    images: Images,
    machine: MachineModel,
    threads: int,
    direct: Arithmetic = Arithmetic.F32,
    largest: int = max(POINTS),
) -> int:
    """Results down and across a tile that make a convolution take the least time; 0: none do.

    Args:
        images: The convolution.
        machine: What it is cut for.
        threads: Threads that share it.
        direct: What it is computed in otherwise; in float32 it is by minimal filtering.
        largest: Results down and across the largest tile that may be.
    """
    plain = images.kernel == (TAPS, TAPS) and images.stride == images.dilation == (1, 1)
    inside = min(images.begin + images.end) >= 0
    if not plain or not inside or images.groups > 1 or images.slices > 1:
        return 0
    sizes = Sizes.of(images, machine, threads, direct, largest)
    side = fastest_side(*map(present, sizes))
    close = CLOSE_ENOUGH if has_varied(sizes) else CLOSE
    if holds_sizes(sizes) and not evaluated(_is_close, close, side, *sizes):
        return settled(evaluated(fastest_side, *sizes))  # type: ignore[no-any-return]  # an int
    return side  # also for other sizes, if it is nearly the fastest for them


def fastest_side(*numbers: int) -> int:
    """The side of the fastest tile, or 0; of the numbers of `Sizes`."""
    direct, small, large = costs(Sizes(*numbers))
    if min(small, large) >= direct:
        return 0
    return 4 if large * GAIN_OF_LARGER <= small else 2


def costs(sizes: Sizes) -> tuple[float, float, float]:
    """The time directly, and with tiles of 2 x 2 and 4 x 4 if they may be; worth their memory."""
    small, large = (
        _time(sizes, side)[0] * GAIN if side <= sizes.largest else math.inf for side in POINTS
    )
    return _direct(sizes), small, large


def _is_close(close: float, side: int, *numbers: int) -> bool:
    """Whether a side, or 0, takes hardly longer than the fastest for the numbers of `Sizes`."""
    direct, small, large = costs(Sizes(*numbers))
    times = {0: direct, 2: small, 4: large * GAIN_OF_LARGER}
    return times[side] <= close * min(times.values())


def panel_and_shares(side: int, *numbers: int) -> tuple[int, int]:
    """Tiles that are computed at a time, and shares across of the grid of shares."""
    sizes = Sizes(*numbers)
    across = _time(sizes, side)[1]
    tiles = -(-_tiles(sizes, side) // (sizes.threads // across))
    panels = -(-tiles // _most_tiles(sizes, side, tiles)[0])
    return max(1, -(-tiles // max(1, panels))), across


def _tiles(sizes: Sizes, side: int) -> int:
    return sizes.batch * -(-sizes.height // side) * -(-sizes.width // side)


def _most_tiles(sizes: Sizes, side: int, tiles: int) -> tuple[int, float]:
    """How many tiles of a share are computed at a time, and the time to read a row from afar.

    Either they stay in the second-level cache, or each row is read from the third-level one for
    every column of outputs.
    """
    pieces = -(-sizes.channels // sizes.lanes) * sizes.lanes
    bytes_of_tile = pixels_of(side) ** 2 * (pieces + sizes.columns) * 4
    near, far = (max(sizes.rows, room // bytes_of_tile) for room in (sizes.near, sizes.far))
    # Bytes that are read for a row: of weights, and of the row itself if it lies far.
    weights = sizes.columns * 4
    fewer, more = (room // sizes.rows * sizes.rows for room in (near, far))
    row, arrival = 4 * sizes.reading(READ_AGAIN), sizes.reading(ARRIVAL)

    def waits(most: int) -> float:
        """How much longer than its products weights of the first panel take, for a channel."""
        return max(0.0, weights * arrival - -(-tiles // -(-tiles // most)))

    soon = waits(fewer) <= waits(more) + PASSED * row * tiles
    if soon and weights / near <= 4 + weights / far:
        return fewer, 0.0
    return more, sizes.channels * row


def _direct(sizes: Sizes) -> float:
    """Time of the longest share, multiplied directly."""
    depth = TAPS * TAPS * sizes.channels / sizes.pace
    read = depth * sizes.columns * 4 * sizes.reading(READ)

    def share(pixels: int, blocks: int) -> float:
        return sizes.computed(blocks) * (depth * pixels + read)

    return _shortest(sizes.batch * sizes.height * sizes.width, share, sizes)[0]


def _time(sizes: Sizes, side: int) -> tuple[float, int]:
    """Time of the longest share with tiles of one size, and shares across."""
    points, channels = pixels_of(side) ** 2, sizes.channels
    weights = channels * sizes.columns * 4
    inputs = INPUT_TRANSFORM * -(-channels // sizes.lanes)
    results = OUTPUT_TRANSFORM * sizes.columns / sizes.lanes

    def share(tiles: int, blocks: int) -> float:
        most, row = _most_tiles(sizes, side, tiles)
        products = tiles * channels + CALL * -(-tiles // sizes.rows)
        again = (-(-tiles // most) - 1) * READ_AGAIN
        products += weights * sizes.reading(READ + again)
        made = sizes.computed(blocks) * (products + results * tiles)
        return points * (made + (blocks * row + inputs) * tiles)

    return _shortest(_tiles(sizes, side), share, sizes)


def _shortest(rows: int, share: Callable[[int, int], float], sizes: Sizes) -> tuple[float, int]:
    """The time of the longest share in the grid where it is shortest, and that grid's columns."""
    blocks, threads = sizes.blocks, sizes.threads
    return min(
        (share(-(-rows // (threads // n)), -(-blocks // n)), n)
        for n in range(1, max(1, min(threads, blocks)) + 1)
    )
