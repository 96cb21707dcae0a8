"""How a matrix product or convolution is cut into tiles: sizes that drivers read from one array."""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.lowering import Array
from partita.lowering.shapes.symbolic_size import evaluated, integers, whole
from partita_cpu.gemm.blocking.panels import (
    column_tiles,
    lines_run_on,
    panel_rows,
    shares_of_columns,
)
from partita_cpu.gemm.blocking.problem import PLAIN, Images, Storage
from partita_cpu.gemm.tile_fields import (
    COLUMNS,
    DIRECT,
    FIELDS,
    HALO,
    STEP,
    THREAD_BYTES,
    TILE_BYTES,
    ZERO_BYTES,
)
from partita_cpu.gemm.tile_kernels import Arithmetic, on_tiles, tile_columns, tile_rows
from partita_cpu.llvm.levels import Level
from partita_cpu.machine_model import LINE_BYTES, MachineModel

PANEL_SHARE = 3 / 16
"""Of the second-level cache, for the piece of the input that is laid out at a time.

The rest is for the weights that it meets and for what comes in and goes out meanwhile.
"""

LARGE_PANEL_SHARE = 1 / 2
"""The same where weights take more than this and do not stay in the cache anyway: they are read
less often so."""

LONG_LINE = 14
"""Pixels of a copied line from which on tiles of a strided convolution may end where it ends;
`FEW_ROWS` of them where tiles have no more rows.

No cache decides that: shorter lines leave tiles half empty, and to copy a window for every pixel
takes less. With tiles of 14 rows (AVX-512) it is slower from here on. Lines that are read where
they lie are not copied at all: half a tile is enough.
"""

LEAST_RUN = 32
"""Channels from which on lines are read where they lie: their runs are short, one for each tap."""

LAYING = 1 / 4
"""Time to lay out an element, over the time of its products in one column of tiles; a guess."""

LAYING_FOR_TILES = 1.0
"""The same where AMX multiplies, which is faster, and elements are split."""

PICTURE = 3
"""Channels of a picture."""

PIECE_SHARE = 3 / 4
"""Of the first-level cache, for a piece of a tile's weights that stays there from tile to tile.

Rows of the left side run through the rest.
"""

FAR_PIECE_SHARE = 3 / 4
"""The same of the second-level cache, where tiles have the few rows of AVX2, or are of float32 in
vectors of AVX-512.

Tiles of 6 rows take a line of weights every six cycles, those of 14 rows one every seven, which
that cache supplies; to put sums down and take them up again between pieces takes longer. Tiles of
bfloat16 take lines twice as fast, and weights that are widened lie in the nearest cache. That holds
5 times as many steps of ARM's narrow tiles; not measured there.
"""

WIDE_LANES = 16
"""Floats of a vector of AVX-512."""

FEW_ROWS = 6
"""Rows of such a tile."""


PAIR = 2
"""Elements along k that vectors of bfloat16 take at a time."""

SET_BYTES = 4096
"""Lines that lie a multiple of this apart share one set of a first-level cache of 64 sets."""

SET_LINES = 8
"""Lines of one set. Caches of 48 KiB have 12: fewer than the 14 rows of a tile too."""

TILE_SET_BYTES = 512
"""Rows of tiles of AMX that lie a multiple of this apart share few sets."""


PLANS = 1 << 12
"""Plans that are kept, of about a kilobyte each: layers are alike, and shapes come again."""

CLAIM_WORK = 1 << 18
"""Multiplications that are worth taking tiles for: some microseconds, where it takes a tenth."""

ENOUGH_TILES = 4
"""Tiles of a column while which the weights of the next one are fetched, if vectors multiply."""

FULLEST = 2
"""Cells of so many times as many elements as a pixel has still are better than columns."""


class Source(enum.IntEnum):
    """Where tile kernels read rows of the left matrix."""

    DIRECT = DIRECT  # in the tensor itself
    HALO = HALO  # in a copy of image rows with their padding; a row of the kernel is one run
    COLUMNS = COLUMNS  # in a copy where every output pixel has all it needs in one run


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
        table: The array for the drivers; see `FIELDS`.
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
        found: int = whole(self.table[THREAD_BYTES])
        return found

    @property
    def packing(self) -> tuple[int, ...]:
        """What the layout of packed weights depends on."""
        run = (self.taps, self.run, self.padded, self.in_place)
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
        self.x_pitch = storage.x_pitch or images.channels
        self.images, self.arithmetic, self.threads = images, arithmetic, threads
        self.machine, self.level = machine, machine.level
        self.columns = tile_columns(self.level)
        self.rows = tile_rows(self.level, arithmetic)
        self.short = arithmetic.in_bfloat16
        self.tiles = on_tiles(self.level, arithmetic)
        self.set_bytes = TILE_SET_BYTES if self.tiles else SET_BYTES
        self.step = PAIR if self.short and not self.tiles else STEP
        self.group_channels = images.channels // images.groups
        self.group_outputs = images.outputs // images.groups
        self.blocks = -(-self.group_outputs // self.columns)
        # A cell is the place of one input pixel in a copy with halo.
        self.cell = self._cell()
        self.pitch = images.width + max(images.begin[1], images.end[1])
        self.source = self._source()
        self.in_place = self.source is Source.HALO and self._lies_ready()
        if self.in_place:
            self.cell, self.pitch = self.x_pitch, images.width

    def _cell(self) -> int:
        """Elements of a cell; few channels stay as they are, and runs of cells are padded."""
        i = self.images
        if i.within:
            # Rows of a tile push one another out of the nearest cache if they lie so far apart.
            apart = 4 * i.channels
            return i.channels + (LINE_BYTES // 4 if apart % self.set_bytes == 0 else 0)
        even = i.channels % 4 == 0 or i.channels == PICTURE
        if i.groups == 1 and i.dilation[1] == 1 and i.kernel[1] > 1 and even:
            run = i.kernel[1] * i.channels
            # Pictures: laying out every pixel by itself takes longer than multiplying zeros.
            if i.channels < STEP and (self._up(run) * 4 <= run * 5 or i.channels <= 4):
                return i.channels
        return self._up(self.group_channels)

    def _up(self, n: int) -> int:
        return -(-n // self.step) * self.step if self.short else n

    def _source(self) -> Source:
        i = self.images
        in_place = i.is_pointwise and not self.storage.scaled and not self.storage.computed
        # Rows for float16 are rounded or widened where they are laid out.
        as_it_is = self.arithmetic.in_float32
        if in_place and (as_it_is or (self.short and self._reads_halves())):
            return Source.COLUMNS if self._rows_collide() else Source.DIRECT
        if as_it_is and self._is_one_line():
            return Source.DIRECT
        overhang = (i.kernel[1] - 1) * i.dilation[1]
        fits = (
            (i.kernel != (1, 1) or i.slices > 1)
            and (i.stride == (1, 1) or self._strided_lines())
            and min(i.begin + i.end) >= 0
            and min(i.begin[1], i.end[1]) <= overhang
            and self.cell <= self.group_channels * FULLEST
            # Channels that lie apart are dealt out with nothing between two pixels.
            and not (self.storage.planar and self.cell != i.channels)
        )
        if not self.tiles:
            fits = fits and i.out_width >= self.rows // 2
        return Source.HALO if fits else Source.COLUMNS

    def _rows_collide(self) -> bool:
        """Whether rows of a tile, where they are, push one another out of the nearest cache."""
        apart = self.x_pitch * (2 if self.storage.half_in else 4)
        return not self.tiles and self.rows > SET_LINES and apart % self.set_bytes == 0

    def _lies_ready(self) -> bool:
        """Whether lines of the image need not be copied: tiles at their ends leave out taps.

        One column of taps must lie on the image under all pixels, and sums not stop between pieces.
        """
        i, kept, gap = self.images, self.storage, self.images.dilation[1]
        changed = kept.half_in or kept.planar or kept.scaled or kept.computed
        plain = self.arithmetic is Arithmetic.F32 and not (changed or i.within)
        return (
            plain
            and i.slices == 1
            and self.group_channels >= LEAST_RUN
            and not self._lines_collide()
            and 4 * i.depth * self.columns <= self._piece_bytes()
            and i.begin[1] % gap == 0
            and i.begin[1] // gap < i.kernel[1]
            and (i.out_width - 1) * i.stride[1] < i.width
        )

    def _lines_collide(self) -> bool:
        """Whether so many pixels under a line's tile push one another out of the nearest cache."""
        apart = 4 * self.images.stride[1] * self.x_pitch
        return min(self.rows, self.images.out_width) > SET_LINES and apart % self.set_bytes == 0

    def _is_one_line(self) -> bool:
        """Whether windows are runs of one line of pixels, that may overlap, without padding."""
        i, kept = self.images, self.storage
        reach = (i.out_width - 1) * i.stride[1] + i.kernel[1]
        return (
            i.batch == i.height == i.out_height == i.kernel[0] == i.groups == i.dilation[1] == 1
            and i.slices == 1
            and not i.within
            and not any(i.begin)
            and reach <= i.width
            and self.x_pitch == i.channels
            and not (kept.scaled or kept.planar or kept.computed)
        )

    def _reads_halves(self) -> bool:
        """Whether whole steps can be read from the input: it is in bfloat16.

        For tiles it must be large enough; then a step is as wide as fits evenly.
        """
        if not self.tiles:
            return self.storage.half_in and self.group_channels % PAIR == 0
        if not self.storage.half_in or self.images.pixels < 16:
            return False
        fitting = (n for n in range(STEP, STEP // 2 - 1, -2) if self.group_channels % n == 0)
        step = next(fitting, 0)
        if not step:
            return False
        self.step = step
        if self.images.pixels < self.rows:
            self.rows = 16
        return True

    def _strided_lines(self) -> bool:
        """Whether a strided convolution reads its rows out of lines: few channels, long lines."""
        if self.images.within or self._lies_ready():
            return True
        enough = FEW_ROWS if self.rows <= FEW_ROWS else LONG_LINE
        return self.cell == self.group_channels and self.images.out_width >= enough

    def plan(self) -> Plan:
        i, unit = self.images, self.arithmetic.element_bytes
        halo = self.source is Source.HALO
        whole = self.cell == self.group_channels and not i.within
        merged = halo and i.dilation[1] == 1 and whole and not self.in_place
        taps, run, cells = self._runs(merged)
        padded = run if self.source is Source.DIRECT else self._up(run)
        if self.source is Source.DIRECT:
            row = i.stride[1] * self.x_pitch * (2 if self.storage.half_in else 4)
        else:
            row = (self.cell * i.stride[1] if halo else padded) * unit
            if not halo and row % self.set_bytes == 0:
                row += LINE_BYTES
        pieces = self._pieces(run, padded)
        weight = self.arithmetic.weight_bytes * self.arithmetic.planes
        of_slice = taps * padded * self.columns * weight
        block = i.slices * of_slice
        # What tiles read behind a run is multiplied by zeros, and must be numbers.
        self.spare = -(-(padded - run) // self.cell) if halo else 0
        values = self._cut(row, block)
        within = np.arange(pieces, dtype=np.int64) * (padded // pieces * unit)
        places = integers(cells)[:, None] * (self.cell * unit) + within
        apart = integers([n * values["SLICE_BYTES"] if n else 0 for n in range(i.sources)])
        offsets = (apart[:, None] + places.reshape(-1)).reshape(-1)
        piece, count = of_slice // (taps * pieces), i.sources * taps * pieces
        wider = self.arithmetic.widened_bytes // self.arithmetic.weight_bytes
        most = max(1, self._piece_bytes() // (piece * wider))
        chunk = -(-count // -(-count // most))
        partial = 0 if chunk >= count else values["TILES"] * TILE_BYTES
        widened = chunk * piece * wider if wider > 1 else 0
        values |= {
            "TAPS": count,
            "DEPTH": padded // pieces // (self.step if self.short else 1),
            "ROW": row,
            "RUN": run // pieces,
            "PADDED": padded,
            "BLOCK_BYTES": block,
            "TAP_BYTES": piece,
            "CHUNK": chunk,
            "PARTIAL_BYTES": partial,
            "W_FIRST": i.covered[0] * of_slice,
            **self._places(),
        }
        values["THREAD_BYTES"] += partial + widened
        table = integers([values[name] for name in FIELDS])
        return Plan(
            i,
            self.level,
            self.arithmetic,
            self.source,
            self.in_place,
            merged,
            i.slices * taps,
            run,
            padded,
            self.columns,
            self.blocks,
            offsets,
            table,
            self.storage,
            self.step,
        )

    def _runs(self, merged: bool) -> tuple[int, int, list[Any]]:
        """Runs per output pixel of a slice, their elements, and the cells where they begin."""
        i = self.images
        (down, across), (dilation_down, dilation) = i.kernel, i.dilation
        if self.source is not Source.HALO:
            return 1, i.depth // i.sources, [0]
        lines = [y * dilation_down * self.pitch for y in range(down)]
        if merged:
            return down, across * self.cell, lines
        if self.in_place:
            cells = [line + x * dilation for x in range(across) for line in lines]
            return down * across, self.group_channels, cells
        cells = [line + x * dilation for line in lines for x in range(across)]
        return down * across, i.within or self.group_channels, cells

    def _places(self) -> dict[str, int]:
        """Where the driver finds input and output."""
        kept = self.storage
        return {
            "X_BYTES": 2 if kept.half_in else 4,
            "Y_BYTES": 2 if kept.half_out else 4,
            "X_PITCH": self.x_pitch,
            "X_FIRST": kept.x_first,
            "SLICE_STEP": self.images.slice_step * (2 if kept.half_in else 4),
            "Y_PITCH": kept.y_pitch or self.images.outputs,
            "Y_FIRST": kept.y_first,
            "SOLID": int(self.x_pitch == self.images.channels and not kept.scaled),
            "SCALED": int(kept.scaled),
            "STEP_BYTES": 2 * self.step,
            "PLANAR": kept.planar,
        }

    def _piece_bytes(self) -> int:
        """Room for a piece of a tile's weights."""
        wide = self.level.lanes >= WIDE_LANES and self.arithmetic is Arithmetic.F32
        if wide or self.rows <= FEW_ROWS:
            return max(self.machine.l1_bytes(PIECE_SHARE), self.machine.l2_bytes(FAR_PIECE_SHARE))
        return self.machine.l1_bytes(PIECE_SHARE)

    def _pieces(self, run: int, padded: int) -> int:
        """Into how many equal pieces runs are cut, so that sums can stop between them."""
        step = self.step if self.tiles else 4 * PAIR if self.short else 4
        row_bytes = self.columns * self.arithmetic.widened_bytes * self.arithmetic.planes
        most = self._piece_bytes()
        uncut = run != padded or padded % step or self.images.within
        if uncut or padded * row_bytes <= most:
            return 1
        steps = padded // step
        fewest = -(-padded * row_bytes // most)
        return next((n for n in range(fewest, steps) if steps % n == 0), steps)

    def _cut(self, row: int, block: int) -> dict[str, int]:
        """Everything that the drivers read, but for what depends on the runs."""
        i, planes = self.images, self.arithmetic.planes
        halo = self.source is Source.HALO
        run_on = halo and i.stride == (1, 1) and not self.in_place
        flat = run_on and (self.tiles or self._runs_on())
        units = i.batch * i.out_height if halo else i.pixels
        cell_bytes = self.cell * self.arithmetic.element_bytes if halo else row
        read = 4 * self.group_channels if self.in_place else i.laid * cell_bytes * planes
        unit_bytes = read * (self.pitch * i.stride[0] if halo else 1)
        extra = (i.kernel[0] - 1) * i.dilation[0] if halo else 0
        shared = -(-max(0, extra + 1 - i.stride[0]) // i.stride[0])  # lines of the result
        grain = 1 if halo else self.rows
        weights = block * self.blocks * i.groups
        large = self.machine.l2_bytes(LARGE_PANEL_SHARE)
        room = large if weights > large else self.machine.l2_bytes(PANEL_SHARE)
        panel = evaluated(panel_rows, room, large, unit_bytes, shared, grain)
        moved = i.batch * i.height * i.width * i.channels * 4 + i.pixels * i.outputs * 4
        grains, columns = -(-units // grain), self.blocks * i.groups
        lines = halo, flat, self.pitch, i.out_width, self.rows
        enough = math.inf if self.tiles else ENOUGH_TILES
        problem = columns, self.threads, weights, self._laying(), enough
        shares = evaluated(shares_of_columns, grains, grain, moved, *problem, *lines)
        panel = evaluated(min, panel, -(-grains // (self.threads // shares)) * grain)
        tiles = evaluated(column_tiles, panel, *lines)
        plane = 0
        if self.source is not Source.DIRECT and not self.in_place:
            lines = (panel - 1) * i.stride[0] + 1 + extra
            rows = lines * self.pitch + i.begin[1] + self.spare if halo else panel
            # Tiles of AMX read whole rows and whole steps: the last may lie behind the panel.
            beyond = self.rows * row + ((i.kernel[1] - 1) * i.dilation[1] + 1) * cell_bytes
            plane = -(-(rows * cell_bytes + beyond + 2 * STEP) // 64) * 64
        (down, across), (top, left) = i.kernel, i.begin
        return {
            "SOURCE": int(self.source),
            "ARITHMETIC": int(self.arithmetic) if self.short else 0,
            "BATCH": i.batch,
            "HEIGHT": i.height,
            "WIDTH": i.width,
            "CHANNELS": i.channels,
            "GROUP_CHANNELS": self.group_channels,
            "CELL": self.cell,
            "TAPS_DOWN": down,
            "TAPS_ACROSS": across,
            "STRIDE_DOWN": i.stride[0],
            "STRIDE_ACROSS": i.stride[1],
            "DILATION_DOWN": i.dilation[0],
            "DILATION_ACROSS": i.dilation[1],
            "TOP": top,
            "LEFT": left,
            "OUT_HEIGHT": i.out_height,
            "OUT_WIDTH": i.out_width,
            "OUTPUTS": i.outputs,
            "GROUP_OUTPUTS": self.group_outputs,
            "TILE_COLUMNS": self.columns,
            "TILE_ROWS": self.rows,
            "BLOCKS": self.blocks,
            "PITCH": self.pitch,
            "TRAIL": min(i.begin[1], i.end[1]) + self.spare if halo else 0,
            "FLAT": whole(flat),
            "UNITS": units,
            "GRAIN": grain,
            "PANEL_UNITS": panel,
            "SHARES_ACROSS": shares,
            "PLANE_BYTES": plane * i.laid,
            "SLICES": i.sources,
            "FIRST_LAID": i.outside[0],
            "LAST_LAID": i.laid - i.outside[1],
            "RESULTS": i.results,
            "RESULT_STEP": i.result_stride,
            "LEAST_TILES": -(-CLAIM_WORK // max(1, self.rows * self.columns * i.depth * i.results)),
            "SLICE_BYTES": plane,
            "COLUMN_STEP": 4 * self.columns if i.within else 0,
            "IN_PLACE": int(self.in_place),
            "TILES": tiles,
            "THREAD_BYTES": plane * i.laid * planes + TILE_BYTES + ZERO_BYTES + 128,
            "EVEN": int(not self.tiles),
        }

    def _laying(self) -> float:
        """Time in which rows are laid out, over that of one column of their tiles."""
        if self.source is Source.DIRECT or self.in_place:
            return 0.0
        i = self.images
        taps = i.kernel[0] * i.kernel[1] if self.source is Source.HALO else 1
        return (LAYING_FOR_TILES if self.tiles else LAYING) / taps

    def _runs_on(self) -> Any:
        """Whether rows of tiles of vectors run on over the ends of image rows.

        A tile of few rows takes as long for each of them as one of one row less: it may end there.
        """
        return self.rows > FEW_ROWS and evaluated(lines_run_on, *self._lines())

    def _lines(self) -> tuple[int, int, int, int]:
        """Lines of the result, their pixels, pixels from one to the next, and rows of a tile."""
        return self.images.out_height, self.images.out_width, self.pitch, self.rows
