"""The plan of a product or convolution: all sizes, as the table that compiled loops read."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.lowering import Array
from partita.lowering.shapes.symbolic_size import evaluated, integer, integers
from partita_cpu.gemm import tile_fields as fields
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns
from partita_cpu.gemm.blocking.left_matrix import LeftMatrix, Source
from partita_cpu.gemm.blocking.panels import (
    column_tiles,
    lines_run_on,
    panel_rows,
    shares_of_columns,
)
from partita_cpu.gemm.blocking.problem import PLAIN, Images, Storage
from partita_cpu.gemm.blocking.weight_pieces import FEW_ROWS, piece_bytes, pieces_of_run
from partita_cpu.gemm.tile_fields import STEP, THREAD_BYTES, TILE_BYTES, ZERO_BYTES
from partita_cpu.llvm.levels import Level
from partita_cpu.machine_model import MachineModel
from partita_cpu.threads.thread_memory import room_of

PANEL_SHARE = 3 / 16
"""Of the second-level cache, for the piece of the input that is laid out at a time.

The rest is for the weights that it meets and for what comes in and goes out meanwhile.
"""

LARGE_PANEL_SHARE = 1 / 2
"""The same where weights take more than this and do not stay in the cache anyway: they are read
less often so."""

COPY_COST = 1 / 4
"""Time to lay out an element, over the time of its products in one column of tiles; a guess."""

COPY_COST_ON_AMX = 1.0
"""The same where AMX multiplies, which is faster, and elements are split."""

FAR_SHARE = 2
"""Of the second-level cache: tensors that take more come from where a processor, which foresees the
next lines of a few rows, does not fetch those of all rows of a tile in time."""

PLANS = 1 << 12
"""Plans that are kept, of about a kilobyte each: layers are alike, and shapes come again."""

CLAIM_WORK = 1 << 18
"""Multiplications that are worth taking tiles for: some microseconds, where it takes a tenth."""

ENOUGH_TILES = 4
"""Tiles of a column while which the weights of the next one are fetched, if vectors multiply."""

MANY_TILES = 8
"""Tiles of a column from which on weights that are widened may lie in the second-level cache."""


@dataclass(frozen=True)
class Plan:
    """A cut problem.

    Attributes:
        images: The problem.
        level: Whose kernels.
        arithmetic: What products are computed in.
        source: Where rows are read.
        in_place: Whether lines are read in the tensor itself; tiles at their ends leave out taps
            that lie beside the image. Taps come column by column then, else row by row.
        merged: Whether all taps of one row of the kernel are one run.
        taps: Runs per output pixel.
        run: Elements of a run that count.
        padded: Elements of a run, with the zeros that the arithmetic needs.
        columns: Columns of a tile.
        blocks: Tiles across, per group.
        offsets: Place of each run in bytes, from the first.
        table: What compiled loops read; see `tile_fields`.
        storage: How input and output lie in memory.
        step: Elements along k that AMX takes at a time; `PAIR` where vectors compute in bfloat16.
    """

    images: Images
    level: Level
    arithmetic: Arithmetic
    source: Source
    in_place: bool
    merged: bool
    taps: int
    run: int
    padded: int
    columns: int
    blocks: int
    offsets: Array
    table: Array
    storage: Storage
    step: int

    @property
    def thread_bytes(self) -> int:
        """Scratch memory that each thread needs."""
        found: int = integer(self.table[THREAD_BYTES])
        return found

    @property
    def packing(self) -> tuple[int, ...]:
        """What the layout of packed weights depends on."""
        parts = self.storage.w_parts
        run = (self.taps, self.run * parts, self.padded * parts, self.in_place)
        return (int(self.arithmetic), self.images.groups, *run, self.columns, self.step)


def plan(
    images: Images,
    machine: MachineModel,
    arithmetic: Arithmetic,
    threads: int,
    storage: Storage = PLAIN,
) -> Plan:
    """Decides how to cut a problem for so many threads.

    Args:
        images: The problem.
        machine: What it is cut for.
        arithmetic: What products are computed in.
        threads: Threads that share it.
        storage: How input and output lie in memory.

    Returns:
        The plan, which others may have too; its arrays are not to be written to, and hold sizes
        where those of the images stand for others.
    """
    make = _made if images.symbolic else _kept
    return make(images, machine, arithmetic, threads, storage)


def _made(
    images: Images, machine: MachineModel, arithmetic: Arithmetic, threads: int, storage: Storage
) -> Plan:
    return _Planner(images, machine, arithmetic, threads, storage).plan()


_kept = functools.lru_cache(maxsize=PLANS)(_made)


class _Planner:
    def __init__(
        self,
        images: Images,
        machine: MachineModel,
        arithmetic: Arithmetic,
        threads: int,
        storage: Storage,
    ) -> None:
        self.storage = storage
        self.images, self.arithmetic, self.threads = images, arithmetic, threads
        self.machine, self.level = machine, machine.level
        self.lhs = LeftMatrix(images, machine, arithmetic, storage)
        self.columns = tile_columns(self.level)
        self.group_outputs = images.outputs // images.groups
        self.blocks = -(-self.group_outputs // self.columns)

    def plan(self) -> Plan:
        i, lhs, unit = self.images, self.lhs, self.arithmetic.element_bytes
        halo = lhs.source is Source.HALO
        taps, run, cells = lhs.runs()
        padded = run if lhs.source is Source.DIRECT else lhs.padded(run)
        row = lhs.row_bytes(padded)
        whole_runs = run != padded or i.merged_group_channels
        row_bytes = self.columns * self.arithmetic.widened_bytes * self.arithmetic.planes
        weight = self.arithmetic.weight_bytes * self.arithmetic.planes
        of_slice = taps * padded * self.columns * weight
        block = i.slices * of_slice
        # What tiles read behind a run is multiplied by zeros, and must be numbers.
        self.spare = -(-(padded - run) // lhs.cell) if halo else 0
        values, tiles = self._panel_sizes(row, block)
        many = not i.symbolic and tiles >= MANY_TILES
        room = piece_bytes(self.machine, self.arithmetic, lhs.rows, halo, many)
        pieces = 1 if whole_runs else pieces_of_run(padded, lhs.piece_step, row_bytes, room)
        starts = np.arange(pieces, dtype=np.int64) * (padded // pieces * unit)
        places = integers(cells)[:, None] * (lhs.cell * unit) + starts
        apart = integers([n * values[fields.SLICE_BYTES] if n else 0 for n in range(i.sources)])
        offsets = (apart[:, None] + places.reshape(-1)).reshape(-1)
        piece, count = of_slice // (taps * pieces), i.sources * taps * pieces
        wider = self.arithmetic.widened_bytes // self.arithmetic.weight_bytes
        most = max(1, room // (piece * wider))
        chunk = -(-count // -(-count // most))
        partial = 0 if chunk >= count else tiles * TILE_BYTES
        widened = chunk * piece * wider if wider > 1 else 0
        values |= {
            fields.TAPS: count,
            fields.DEPTH: padded // pieces // (lhs.step if lhs.in_bfloat16 else 1),
            fields.ROW: row,
            fields.RUN: run // pieces,
            fields.PADDED: padded,
            fields.BLOCK_BYTES: block * self.storage.w_parts,
            fields.TAP_BYTES: piece,
            fields.CHUNK: chunk,
            fields.PARTIAL_BYTES: partial,
            fields.W_FIRST: (i.covered[0] + self.storage.w_part) * of_slice,
            **self._image_sizes(),
            **self._places(),
        }
        own = values[fields.THREAD_BYTES] + partial + widened
        values[fields.THREAD_BYTES] = room_of(own, self.threads)
        table = integers([values[field] for field in range(fields.FIELDS)])
        return Plan(
            i,
            self.level,
            self.arithmetic,
            lhs.source,
            lhs.in_place,
            lhs.merged,
            i.slices * taps,
            run,
            padded,
            self.columns,
            self.blocks,
            offsets,
            table,
            self.storage,
            lhs.step,
        )

    def _image_sizes(self) -> dict[int, int]:
        """Fields of the problem itself."""
        i = self.images
        (down, across), (top, left) = i.kernel, i.begin
        return {
            fields.BATCH: i.batch,
            fields.HEIGHT: i.height,
            fields.WIDTH: i.width,
            fields.CHANNELS: i.channels,
            fields.GROUP_CHANNELS: self.lhs.group_channels,
            fields.TAPS_DOWN: down,
            fields.TAPS_ACROSS: across,
            fields.STRIDE_DOWN: i.stride[0],
            fields.STRIDE_ACROSS: i.stride[1],
            fields.DILATION_DOWN: i.dilation[0],
            fields.DILATION_ACROSS: i.dilation[1],
            fields.TOP: top,
            fields.LEFT: left,
            fields.OUT_HEIGHT: i.out_height,
            fields.OUT_WIDTH: i.out_width,
            fields.OUTPUTS: i.outputs,
            fields.GROUP_OUTPUTS: self.group_outputs,
        }

    def _places(self) -> dict[int, int]:
        """Fields of input and output in memory."""
        kept, lhs = self.storage, self.lhs
        return {
            fields.X_BYTES: 2 if kept.half_in else 4,
            fields.Y_BYTES: 2 if kept.half_out else 4,
            fields.X_PITCH: lhs.x_pitch,
            fields.X_FIRST: kept.x_first,
            fields.SLICE_STEP: self.images.slice_step * (2 if kept.half_in else 4),
            fields.Y_PITCH: kept.y_pitch or self.images.outputs,
            fields.Y_FIRST: kept.y_first,
            fields.SOLID: int(lhs.x_pitch == self.images.channels and not kept.scaled),
            fields.SCALED: int(kept.scaled),
            fields.STEP_BYTES: 2 * lhs.step,
            fields.PLANAR: kept.planar,
        }

    def _panel_sizes(self, row: int, block: int) -> tuple[dict[int, int], int]:
        """Fields that do not depend on the runs, and tiles in one column of a panel."""
        i, lhs, planes = self.images, self.lhs, self.arithmetic.planes
        halo = lhs.source is Source.HALO
        run_on = halo and i.stride == (1, 1) and not lhs.in_place
        flat = (halo and i.is_column) or (run_on and (lhs.on_amx or self._runs_on()))
        units = i.batch * i.out_height if halo else i.pixels
        cell_bytes = lhs.cell * self.arithmetic.element_bytes if halo else self._read_bytes(row)
        read = 4 * lhs.group_channels if lhs.in_place else i.panel_slices * cell_bytes * planes
        unit_bytes = read * (lhs.pitch * i.stride[0] if halo else 1)
        extra = (i.kernel[0] - 1) * i.dilation[0] if halo else 0
        shared = -(-max(0, extra + 1 - i.stride[0]) // i.stride[0])  # lines of the result
        grain = 1 if halo else lhs.rows
        weights = block * self.blocks * i.groups
        large = self.machine.l2_bytes(LARGE_PANEL_SHARE)
        room = large if weights > large else self.machine.l2_bytes(PANEL_SHARE)
        if not (halo or lhs.on_amx or weights > large):
            # Weights stay in the cache: rows of the result do until all their columns are there.
            unit_bytes += i.outputs * (2 if self.storage.half_out else 4)
        panel = evaluated(panel_rows, room, large, unit_bytes, shared, grain)
        moved = i.batch * i.height * i.width * i.channels * 4 + i.pixels * i.outputs * 4
        grains, columns = -(-units // grain), self.blocks * i.groups
        lines = halo, flat, lhs.pitch, i.out_width, lhs.rows
        enough = math.inf if lhs.on_amx else ENOUGH_TILES
        problem = columns, self.threads, weights, self._copy_cost(), enough
        shares = 1
        if self.threads > 1:
            shares = evaluated(shares_of_columns, grains, grain, moved, *problem, *lines)
        panel = evaluated(min, panel, -(-grains // (self.threads // shares)) * grain)
        tiles = evaluated(column_tiles, panel, *lines)
        plane = self._plane_bytes(panel, row)
        slices = plane * i.panel_slices
        tile_work = lhs.rows * self.columns * i.depth * i.results
        values = {
            fields.SOURCE: int(lhs.source),
            fields.ARITHMETIC: int(self.arithmetic) if lhs.in_bfloat16 else 0,
            fields.CELL: lhs.cell,
            fields.TILE_COLUMNS: self.columns,
            fields.TILE_ROWS: lhs.rows,
            fields.BLOCKS: self.blocks,
            fields.PITCH: lhs.pitch,
            fields.TRAIL: min(i.begin[1], i.end[1]) + self.spare if halo else 0,
            fields.FLAT: integer(flat),
            fields.UNITS: units,
            fields.GRAIN: grain,
            fields.PANEL_UNITS: panel,
            fields.SHARES_ACROSS: shares,
            fields.PLANE_BYTES: slices,
            fields.SLICES: i.sources,
            fields.FIRST_SLICE: i.outside[0],
            fields.LAST_SLICE: i.panel_slices - i.outside[1],
            fields.RESULTS: i.results,
            fields.RESULT_STEP: i.result_stride,
            fields.LEAST_TILES: -(-CLAIM_WORK // max(1, tile_work)),
            fields.SLICE_BYTES: plane,
            fields.COLUMN_STEP: 4 * self.columns if i.merged_group_channels else 0,
            fields.IN_PLACE: int(lhs.in_place),
            fields.ROWS_AHEAD: self._rows_ahead(),
            fields.THREAD_BYTES: planes * slices + 2 * TILE_BYTES + ZERO_BYTES + 128,
            fields.EVEN: int(not lhs.on_amx),
        }
        return values, tiles

    def _read_bytes(self, row: int) -> int:
        """Bytes that tiles read of a row: of a matrix in a wider one, or a part of its terms."""
        read = self.lhs.runs()[1] * self.arithmetic.element_bytes
        return min(row, read) if self.lhs.source is Source.DIRECT else row

    def _rows_ahead(self) -> int:
        """Whether tiles ask for the rows of the next one: they read a tensor itself that is far."""
        i, lhs = self.images, self.lhs
        if lhs.source is not Source.DIRECT or lhs.on_amx:
            return 0
        nbytes = i.batch * i.height * i.width * lhs.x_pitch * (2 if self.storage.half_in else 4)
        far: int = integer(evaluated(operator.gt, nbytes, self.machine.l2_bytes(FAR_SHARE)))
        return far

    def _plane_bytes(self, panel: int, row: int) -> int:
        """Bytes that the input of so many rows takes where it is laid out, in one plane."""
        i, lhs = self.images, self.lhs
        if lhs.source is Source.DIRECT or lhs.in_place:
            return 0
        halo = lhs.source is Source.HALO
        cell_bytes = lhs.cell * self.arithmetic.element_bytes if halo else row
        lines = (panel - 1) * i.stride[0] + 1 + (i.kernel[0] - 1) * i.dilation[0]
        rows = lines * lhs.pitch + i.begin[1] + self.spare if halo else panel
        # Tiles of AMX read whole rows and whole steps: the last may lie behind the panel.
        beyond = lhs.rows * row + ((i.kernel[1] - 1) * i.dilation[1] + 1) * cell_bytes
        return -(-(rows * cell_bytes + beyond + 2 * STEP) // 64) * 64

    def _copy_cost(self) -> float:
        """Time in which rows are laid out, over that of one column of their tiles."""
        lhs = self.lhs
        if lhs.source is Source.DIRECT or lhs.in_place:
            return 0.0
        i = self.images
        taps = i.kernel[0] * i.kernel[1] if lhs.source is Source.HALO else 1
        return (COPY_COST_ON_AMX if lhs.on_amx else COPY_COST) / taps

    def _runs_on(self) -> Any:
        """Whether rows of tiles of vectors run on over the ends of image rows.

        A tile of few rows takes as long for each of them as one of one row less: it may end there.
        """
        return self.lhs.rows > FEW_ROWS and evaluated(lines_run_on, *self._lines())

    def _lines(self) -> tuple[int, int, int, int]:
        """Lines of the result, their pixels, pixels from one to the next, and rows of a tile."""
        return self.images.out_height, self.images.out_width, self.lhs.pitch, self.lhs.rows
