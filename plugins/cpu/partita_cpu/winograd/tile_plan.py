"""Blocking of a convolution for Winograd's minimal filtering: the table that the loop reads.

A tile of m x m results of 3 x 3 taps is computed from n x n pixels, n = m + 2. Its pixels are
transformed, each of the n x n points is a product of matrices (tiles, channels) by (channels,
outputs), and the sums of a tile are transformed to results: n^2 / m^2 multiplications for a result
instead of 9.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from partita.lowering import Array
from partita.lowering.shapes.symbolic_size import evaluated, integer, integers
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import Plan, plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.tile_fields import ZERO_BYTES
from partita_cpu.gemm.tile_kernels import tile_kernels
from partita_cpu.jit import llvm_kernel
from partita_cpu.llvm.images.winograd import pixels_of
from partita_cpu.llvm.levels import Level
from partita_cpu.machine_model import LINE_BYTES, MachineModel
from partita_cpu.threads.thread_memory import room_of
from partita_cpu.winograd.tile_kind import TileKind
from partita_cpu.winograd.time_model import Sizes, panel_and_shares

SHEET_PIXELS = 64
"""Pixels of a result that are made of sums at a time; they stay in the first-level cache."""

(
    SIDE,  # results down and across a tile
    DOWN,  # tiles of an image, down
    ACROSS,  # and across
    TILES,  # tiles of all images
    PANEL,  # tiles that are computed at a time
    PANELS,
    SHARES,  # into how many shares threads divide the outputs
    ROW_BYTES,  # channels of a transformed pixel
    PIXEL_BYTES,  # of a copied one, in float32
    DEPTH,  # channels, or pairs of them, that are multiplied at a point
    IN_PAIRS,  # whether pixels and weights are pairs of bfloat16 at the points
    PLANE_BYTES,  # all tiles of a panel at one point
    SUMS_AT,
    SUM_PLANE_BYTES,  # sums of a panel at one point
    SHEET_AT,  # sums that become results
    RUN,  # tiles whose results are made at a time
    PIXELS_AT,
    ZEROS_AT,
    TAPS_AT,
    POINT_BYTES,  # weights of a column of outputs at one point
    MEMORY_BYTES,  # of a thread
) = range(21)
"""Places of the driver's table. `..._AT`: bytes from the start of a thread's memory."""

TRANSFORM_INPUT, TRANSFORM_COPIED_INPUT, TRANSFORM_OUTPUT = range(3)
"""Places of the kernels that transform: pixels as they lie, copied ones, and sums."""


@dataclass(frozen=True)
class WinogradPlan:
    """A cut convolution.

    Attributes:
        cut: The same convolution, cut for being multiplied directly: sizes, and where things lie.
        kind: Its tiles.
        table: What the compiled loop reads: `SIDE` and the following.
    """

    cut: Plan
    kind: TileKind
    table: Array

    @property
    def thread_bytes(self) -> int:
        """Scratch memory that each thread needs."""
        found: int = integer(self.table[MEMORY_BYTES])
        return found


def winograd_plan(
    images: Images, machine: MachineModel, threads: int, storage: Storage, kind: TileKind
) -> WinogradPlan:
    """Cuts a convolution of 3 x 3 taps for so many threads.

    Args:
        images: The convolution.
        machine: What it is cut for.
        threads: Threads that share it.
        storage: How input and output lie in memory.
        kind: Its tiles.
    """
    cut = plan(images, machine, Arithmetic.F32, threads, storage)
    side, in_pairs = kind.side, kind.arithmetic is Arithmetic.BF16
    points, lanes = pixels_of(side) ** 2, machine.level.lanes
    down, across = -(-images.out_height // side), -(-images.out_width // side)
    tiles = images.batch * down * across
    padded, columns = -(-images.channels // lanes) * lanes, cut.columns * 4
    row, pixel = padded * kind.point_bytes, padded * 4
    depth = -(-images.channels // 2) if in_pairs else images.channels
    grid = evaluated(panel_and_shares, kind, *Sizes.of(images, machine, threads))
    panel, shares = evaluated(_first, grid), evaluated(_last, grid)
    plane, sums = evaluated(_odd_lines, panel * row), evaluated(_odd_lines, panel * columns)
    run = max(1, SHEET_PIXELS // side**2)
    sizes = points * plane, points * sums, run * side**2 * columns, points * pixel
    sums_at = sizes[0]
    sheet_at = sums_at + sizes[1]
    pixels_at = sheet_at + sizes[2]
    zeros_at = pixels_at + sizes[3]
    taps_at = zeros_at + ZERO_BYTES
    memory = room_of(taps_at + images.channels * columns + LINE_BYTES, threads)
    values = (
        *(side, down, across, tiles, panel, -(-tiles // panel), shares),
        *(row, pixel, depth, int(in_pairs), plane),
        *(sums_at, sums, sheet_at, run, pixels_at, zeros_at, taps_at),
        *(depth * columns, memory),
    )
    return WinogradPlan(cut, kind, integers(values))


def _odd_lines(size: int) -> int:
    """So many bytes or a little more: an odd number of cache lines, which meet all of its sets."""
    return (-(-size // LINE_BYTES) | 1) * LINE_BYTES


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _last(pair: tuple[int, int]) -> int:
    return pair[1]


@functools.cache
def transform_kernels(level: Level, kind: TileKind, half_in: bool) -> Array:
    """The addresses of the kernels that transform tiles of one kind.

    Args:
        level: Whose kernels.
        kind: Of the tiles.
        half_in: Whether images are read in bfloat16.
    """
    known, side = llvm_kernel.addresses(level, "_winograd"), kind.side
    copied = images = known[f"input_transform_{side}"]
    if half_in or kind.arithmetic is Arithmetic.BF16:
        halves = llvm_kernel.addresses(level, "_winograd_halves")
        if kind.arithmetic is Arithmetic.BF16:
            copied = halves["input_transform_to_pairs"]
            images = halves["input_transform_halves_to_pairs"] if half_in else copied
        else:
            images = halves[f"input_transform_halves_{side}"]
    return np.array([images, copied, known[f"output_transform_{side}"]], np.int64)


def point_kernels(level: Level, kind: TileKind, most_rows: int) -> Array:
    """The kernels that multiply at the points; see `tile_kernels`.

    Args:
        level: Whose kernels.
        kind: Of the tiles.
        most_rows: Rows of their products.
    """
    return tile_kernels(level, kind.arithmetic, most_rows=most_rows)
