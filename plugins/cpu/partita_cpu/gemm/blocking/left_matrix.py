"""The left matrix as tiles read it: the tensor itself, a copy of image rows, or an im2col copy."""

from __future__ import annotations

import enum
from typing import Any

from partita.lowering.shapes.symbolic_size import assumed
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles, tile_columns, tile_rows
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.blocking.weight_pieces import FEW_ROWS, piece_bytes
from partita_cpu.gemm.tile_fields import COLUMNS, DIRECT, HALO, PAIR, STEP
from partita_cpu.machine_model import LINE_BYTES, SET_BYTES, MachineModel

LONG_LINE = 14
"""Pixels of a copied line from which on tiles of a strided convolution may end where it ends;
`FEW_ROWS` of them where tiles have no more rows.

No cache decides that: shorter lines leave tiles half empty, and to copy a window for every pixel
takes less. With tiles of 14 rows (AVX-512) it is slower from here on. Lines that are read where
they lie are not copied at all: half a tile is enough.
"""

LEAST_RUN = 32
"""Channels from which on lines are read where they lie: their runs are short, one for each tap."""

PICTURE = 3
"""Channels of a picture."""

SET_LINES = 8
"""Lines of one set. Caches of 48 KiB have 12: fewer than the 14 rows of a tile too."""

TILE_SET_BYTES = 512
"""Rows of tiles of AMX that lie a multiple of this apart share few sets."""

FULLEST = 2
"""Cells of so many times as many elements as a pixel has still are better than columns."""


class Source(enum.IntEnum):
    """Where tile kernels read rows of the left matrix."""

    DIRECT = DIRECT  # in the tensor itself
    HALO = HALO  # in a copy of image rows with their padding; a row of the kernel is one run
    COLUMNS = COLUMNS  # in a copy where every output pixel has all it needs in one run


class LeftMatrix:
    """How tiles read the left matrix of a problem.

    Attributes:
        source: Where.
        in_place: Whether lines are read in the tensor itself; see `Plan.in_place`.
        cell: Elements from one pixel of an image row to the next, where tiles read rows.
        pitch: Pixels from one image row to the next.
        x_pitch: Elements from one pixel of the tensor to the next.
        group_channels: Channels of a group.
        rows: Of a tile.
        step: Elements along k that AMX takes at a time; `PAIR` where vectors compute in bfloat16.
        in_bfloat16: Whether products are computed in bfloat16.
        on_amx: Whether AMX computes them.
    """

    def __init__(
        self, images: Images, machine: MachineModel, arithmetic: Arithmetic, storage: Storage
    ) -> None:
        self.storage = storage
        self.x_pitch = storage.x_pitch or images.channels
        self.images, self.arithmetic, self.machine = images, arithmetic, machine
        # The axis along which pixels lie behind one another.
        self._along = 0 if not images.is_pointwise and images.is_column else 1
        self.in_bfloat16 = arithmetic.in_bfloat16
        self.on_amx = on_tiles(machine.level, arithmetic)
        self.rows = tile_rows(machine.level, arithmetic) if self.on_amx else machine.tile_rows
        self.set_bytes = TILE_SET_BYTES if self.on_amx else SET_BYTES
        self.step = PAIR if self.in_bfloat16 and not self.on_amx else STEP
        self.group_channels = images.channels // images.groups
        # A cell is the place of one input pixel in a copy with halo.
        self.cell = self._cell()
        self.pitch = images.width + max(images.begin[1], images.end[1])
        self.source = self._source()
        self.in_place = self.source is Source.HALO and self._reads_in_place()
        if self.in_place:
            self.cell, self.pitch = self.x_pitch, images.width

    @property
    def merged(self) -> bool:
        """Whether all taps of one row of the kernel are one run."""
        halo = self.source is Source.HALO
        whole = self.cell == self.group_channels and not self.images.merged_group_channels
        return halo and self.images.dilation[self._along] == 1 and whole and not self.in_place

    def padded(self, n: int) -> int:
        """So many elements, with the zeros that the arithmetic needs behind them."""
        return -(-n // self.step) * self.step if self.in_bfloat16 else n

    def runs(self) -> tuple[int, int, list[Any]]:
        """Runs per output pixel of a slice, their elements, and the cells where they begin."""
        i = self.images
        (down, across), (dilation_down, dilation) = i.kernel, i.dilation
        if self.source is not Source.HALO:
            return 1, i.depth // i.sources, [0]
        lines = [y * dilation_down * self.pitch for y in range(down)]
        if self.merged and i.is_column:
            return 1, down * self.cell, [0]
        if self.merged:
            return down, across * self.cell, lines
        if self.in_place:
            cells = [line + x * dilation for x in range(across) for line in lines]
            return down * across, self.group_channels, cells
        cells = [line + x * dilation for line in lines for x in range(across)]
        return down * across, i.merged_group_channels or self.group_channels, cells

    @property
    def piece_step(self) -> int:
        """Elements along k that sums may stop behind."""
        if self.on_amx:
            return self.step
        return 4 * PAIR if self.in_bfloat16 else 4

    def row_bytes(self, padded: int) -> int:
        """Bytes from one row to the next.

        Args:
            padded: Elements of a run, with the zeros that the arithmetic needs.
        """
        stride = self.images.stride[self._along]
        if self.source is Source.DIRECT:
            return stride * self.x_pitch * (2 if self.storage.half_in else 4)
        halo = self.source is Source.HALO
        row = (self.cell * stride if halo else padded) * self.arithmetic.element_bytes
        if not halo and row % self.set_bytes == 0:
            row += LINE_BYTES
        return row

    def _cell(self) -> int:
        """Elements of a cell; few channels stay as they are, and runs of cells are padded."""
        i = self.images
        if i.merged_group_channels:
            # Rows of a tile push one another out of the nearest cache if they lie so far apart.
            apart = 4 * i.channels
            return i.channels + (LINE_BYTES // 4 if apart % self.set_bytes == 0 else 0)
        even = i.channels % 4 == 0 or i.channels == PICTURE
        taps = i.kernel[self._along]
        if i.groups == 1 and i.dilation[self._along] == 1 and taps > 1 and even:
            run = taps * i.channels
            # Pictures: laying out every pixel by itself takes longer than multiplying zeros.
            if i.channels < STEP and (self.padded(run) * 4 <= run * 5 or i.channels <= 4):
                return i.channels
        return self.padded(self.group_channels)

    def _source(self) -> Source:
        i = self.images
        in_place = i.is_pointwise and not self.storage.scaled and not self.storage.computed
        # Rows for float16 are rounded or widened where they are laid out.
        as_it_is = self.arithmetic.in_float32
        if in_place and (as_it_is or (self.in_bfloat16 and self._reads_bfloat16())):
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
        if not self.on_amx:
            fits = fits and self._line >= self.rows // 2
        return Source.HALO if fits else Source.COLUMNS

    def _rows_collide(self) -> bool:
        """Whether rows of a tile, where they are, push one another out of the nearest cache."""
        apart = self.x_pitch * (2 if self.storage.half_in else 4)
        return not self.on_amx and self.rows > SET_LINES and apart % self.set_bytes == 0

    def _reads_in_place(self) -> bool:
        """Whether lines of the image need not be copied: tiles at their ends leave out taps.

        One column of taps must lie on the image under all pixels, and sums not stop between pieces.
        """
        i, kept, gap = self.images, self.storage, self.images.dilation[1]
        changed = kept.half_in or kept.planar or kept.scaled or kept.computed
        plain = self.arithmetic is Arithmetic.F32 and not (changed or i.merged_group_channels)
        return (
            plain
            and i.slices == 1
            and not i.is_column
            and self.group_channels >= LEAST_RUN
            and not self._lines_collide()
            and 4 * i.depth * tile_columns(self.machine.level)
            <= piece_bytes(self.machine, self.arithmetic, self.rows)
            and i.begin[1] % gap == 0
            and i.begin[1] // gap < i.kernel[1]
            and (i.out_width - 1) * i.stride[1] < i.width
        )

    def _lines_collide(self) -> bool:
        """Whether so many pixels under a line's tile push one another out of the nearest cache."""
        apart = 4 * self.images.stride[1] * self.x_pitch
        together = apart % self.set_bytes == 0 and self.rows > SET_LINES
        return together and assumed(self.images.out_width) > SET_LINES

    def _is_one_line(self) -> bool:
        """Whether windows are runs of one line of pixels, that may overlap, without padding."""
        i, kept = self.images, self.storage
        reach = (i.out_width - 1) * i.stride[1] + i.kernel[1]
        return (
            i.kernel[0] == i.groups == i.dilation[1] == i.slices == 1
            and not i.merged_group_channels
            and not any(i.begin)
            and self.x_pitch == i.channels
            and not (kept.scaled or kept.planar or kept.computed)
            and i.height == i.out_height == i.batch == 1
            and reach <= i.width
        )

    def _reads_bfloat16(self) -> bool:
        """Whether whole steps can be read from the input: it is in bfloat16.

        For tiles it must be large enough; then a step is as wide as fits evenly.
        """
        if not self.on_amx:
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
        if self.images.merged_group_channels or self._reads_in_place():
            return True
        enough = FEW_ROWS if self.rows <= FEW_ROWS else LONG_LINE
        return self.cell == self.group_channels and self._line >= enough

    @property
    def _line(self) -> Any:
        """Pixels of a line of the result, which decide only what is faster."""
        return assumed((self.images.out_height, self.images.out_width)[self._along])
