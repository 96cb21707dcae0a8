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
from partita_cpu.winograd.tile_kind import FILTERED, TileKind

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

GAIN = {TileKind.SMALL_PAIRS: 1.2, TileKind.SMALL: 1.1, TileKind.LARGE: 1.1}
"""How many times less time than directly is worth the memory that weights take; and, in bfloat16,
what rounding transformed numbers loses."""

PREFERENCE = {TileKind.SMALL_PAIRS: 1.2, TileKind.SMALL: 1.0, TileKind.LARGE: 1.15}
"""As how many times longer a time counts beside other tiles: the weights of 4 x 4 take more than
twice the memory of those of 2 x 2, and points in float32 lose less."""

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
        pairs: Whether points may be multiplied in bfloat16.
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
    pairs: int = 0

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
        level, in_pairs = machine.level, direct is Arithmetic.BF16
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
            BFLOAT16_PACE if in_pairs else 1,
            largest,
            2 if machine.halves_vectors and level.lanes == 16 else 1,
            int(in_pairs and level.keeps_bfloat16 and not level.tiles),
        )

    def pace_of(self, kind: TileKind) -> int:
        """How many times as fast as in float32 points are multiplied."""
        return BFLOAT16_PACE if kind.arithmetic is Arithmetic.BF16 else 1

    def allows(self, kind: TileKind) -> bool:
        """Whether there may be such tiles."""
        return kind.side <= self.largest and (self.pairs > 0 or kind.arithmetic is Arithmetic.F32)

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


def kind_for(
    images: Images,
    machine: MachineModel,
    threads: int,
    direct: Arithmetic = Arithmetic.F32,
    largest: int = max(POINTS),
) -> TileKind:
    """The tiles that make a convolution take the least time, if any do.

    Args:
        images: The convolution.
        machine: What it is cut for.
        threads: Threads that share it.
        direct: What it is computed in otherwise; only in bfloat16 tiles may be so, too.
        largest: Results down and across the largest tile that may be.
    """
    plain = images.kernel == (TAPS, TAPS) and images.stride == images.dilation == (1, 1)
    inside = min(images.begin + images.end) >= 0
    if not plain or not inside or images.groups > 1 or images.slices > 1:
        return TileKind.DIRECT
    sizes = Sizes.of(images, machine, threads, direct, largest)
    kind = fastest_kind(*map(present, sizes))
    close = CLOSE_ENOUGH if has_varied(sizes) else CLOSE
    if holds_sizes(sizes) and not evaluated(_is_close, close, kind, *sizes):
        return TileKind(settled(evaluated(fastest_kind, *sizes)))
    return TileKind(kind)  # also for other sizes, if it is nearly the fastest for them


def fastest_kind(*numbers: int) -> TileKind:
    """The fastest tiles, of the numbers of `Sizes`."""
    found = costs(Sizes(*numbers))
    direct = found.pop(TileKind.DIRECT)
    if min(found.values()) >= direct:
        return TileKind.DIRECT
    return min(found, key=lambda kind: found[kind] * PREFERENCE[kind])


def costs(sizes: Sizes) -> dict[TileKind, float]:
    """The time directly, and by each kind of tiles if they may be; worth what they cost besides."""
    found = {TileKind.DIRECT: _direct(sizes)}
    for kind in FILTERED:
        found[kind] = _time(sizes, kind)[0] * GAIN[kind] if sizes.allows(kind) else math.inf
    return found


def _is_close(close: float, kind: int, *numbers: int) -> bool:
    """Whether a kind of tiles takes hardly longer than the fastest for the numbers of `Sizes`."""
    times = {one: time * PREFERENCE.get(one, 1.0) for one, time in costs(Sizes(*numbers)).items()}
    return times[TileKind(kind)] <= close * min(times.values())


def panel_and_shares(kind: TileKind, *numbers: int) -> tuple[int, int]:
    """Tiles that are computed at a time, and shares across of the grid of shares."""
    sizes = Sizes(*numbers)
    across = _time(sizes, kind)[1]
    tiles = -(-_tiles(sizes, kind.side) // (sizes.threads // across))
    panels = -(-tiles // _most_tiles(sizes, kind, tiles)[0])
    return max(1, -(-tiles // max(1, panels))), across


def _tiles(sizes: Sizes, side: int) -> int:
    return sizes.batch * -(-sizes.height // side) * -(-sizes.width // side)


def _most_tiles(sizes: Sizes, kind: TileKind, tiles: int) -> tuple[int, float]:
    """How many tiles of a share are computed at a time, and the time to read a row from afar.

    Either they stay in the second-level cache, or each row is read from the third-level one for
    every column of outputs.
    """
    pieces, element = -(-sizes.channels // sizes.lanes) * sizes.lanes, kind.point_bytes
    bytes_of_tile = pixels_of(kind.side) ** 2 * (pieces * element + sizes.columns * 4)
    near, far = (max(sizes.rows, room // bytes_of_tile) for room in (sizes.near, sizes.far))
    # Bytes that are read for a row: of weights, and of the row itself if it lies far.
    weights, pace = sizes.columns * element, sizes.pace_of(kind)
    fewer, more = (room // sizes.rows * sizes.rows for room in (near, far))
    row, arrival = element * sizes.reading(READ_AGAIN), sizes.reading(ARRIVAL)

    def waits(most: int) -> float:
        """How much longer than its products weights of the first panel take, for a channel."""
        return max(0.0, weights * arrival - -(-tiles // -(-tiles // most)) / pace)

    soon = waits(fewer) <= waits(more) + PASSED * row * tiles
    if soon and weights / near <= element + weights / far:
        return fewer, 0.0
    return more, sizes.channels * row


def _direct(sizes: Sizes) -> float:
    """Time of the longest share, multiplied directly."""
    depth = TAPS * TAPS * sizes.channels / sizes.pace
    read = depth * sizes.columns * 4 * sizes.reading(READ)

    def share(pixels: int, blocks: int) -> float:
        return sizes.computed(blocks) * (depth * pixels + read)

    return _shortest(sizes.batch * sizes.height * sizes.width, share, sizes)[0]


def _time(sizes: Sizes, kind: TileKind) -> tuple[float, int]:
    """Time of the longest share with tiles of one kind, and shares across."""
    points, channels = pixels_of(kind.side) ** 2, sizes.channels
    weights, pace = channels * sizes.columns * kind.point_bytes, sizes.pace_of(kind)
    inputs = INPUT_TRANSFORM * -(-channels // sizes.lanes)
    results = OUTPUT_TRANSFORM * sizes.columns / sizes.lanes

    def share(tiles: int, blocks: int) -> float:
        most, row = _most_tiles(sizes, kind, tiles)
        products = tiles * channels / pace + CALL * -(-tiles // sizes.rows)
        again = (-(-tiles // most) - 1) * READ_AGAIN
        products += weights * sizes.reading(READ + again)
        made = sizes.computed(blocks) * (products + results * tiles)
        return points * (made + (blocks * row + inputs) * tiles)

    return _shortest(_tiles(sizes, kind.side), share, sizes)


def _shortest(rows: int, share: Callable[[int, int], float], sizes: Sizes) -> tuple[float, int]:
    """The time of the longest share in the grid where it is shortest, and that grid's columns."""
    blocks, threads = sizes.blocks, sizes.threads
    return min(
        (share(-(-rows // (threads // n)), -(-blocks // n)), n)
        for n in range(1, max(1, min(threads, blocks)) + 1)
    )
