"""The table of the packing kernels: sizes, strides, and the packed layout."""

from __future__ import annotations

from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns
from partita_cpu.gemm.tile_fields import STEP as WHOLE_STEP
from partita_cpu.jit import llvm_kernel
from partita_cpu.llvm.copies.transpose_block import SIDE
from partita_cpu.llvm.levels import Level

(
    GROUPS,  # of the convolution
    OUTPUTS,  # of a group
    CHANNELS,  # of a group
    DOWN,  # taps
    ACROSS,  # taps
    GROUP_STEP,
    OUTPUT_STEP,
    CHANNEL_STEP,
    DOWN_STEP,
    ACROSS_STEP,
    ROWS,  # of a block of columns
    RUN,  # elements of a run that count
    PADDED,  # elements of a run with the zeros behind it
    BLOCKS,  # columns of tiles
    COLUMNS,  # of a tile
    PLANES,  # parts that an element is stored in
    STEP,  # elements along k of a piece
    TRANSPOSE,  # kernel that transposes a block
    PACK_TILE,  # kernel that packs bfloat16, or 0
    COPY_FLUSHED,  # kernel that copies rows of float32, or 0
    PAIRS,  # whether vectors, not AMX, compute in bfloat16
    LEAVES,  # whether halves of blocks without columns are left as they are
    FIELDS,  # how many these are
) = range(23)
"""Places of the table of the packing kernels. `..._STEP`: elements between neighbours."""

Table = tuple[int, ...]
"""The table of one call."""


def matrix_table(
    level: Level, arithmetic: Arithmetic, sizes: tuple[int, int], steps: tuple[int, int]
) -> list[int]:
    """The table of `pack_units` for a matrix that is only known at run time.

    Tiles must be of the first half of a block where that alone has columns.

    Args:
        level: Whose tiles it is packed for, by vectors.
        arithmetic: Float32, or bfloat16.
        sizes: Rows and columns.
        steps: Elements from one row to the next, and from one column to the next.
    """
    (rows, columns), (down, across) = sizes, steps
    wide, pairs = tile_columns(level), int(arithmetic.in_bfloat16)
    padded = -(-rows // 2) * 2 if pairs else rows
    lies = (rows, 1, 1, 0, across, down, 0, 0)
    layout = (padded, rows, padded, -(-columns // wide), wide, 1, WHOLE_STEP)
    return [1, columns, *lies, *layout, *kernel_addresses(level, arithmetic), pairs, 1]


def kernel_addresses(level: Level, arithmetic: Arithmetic) -> tuple[int, int, int]:
    """The addresses of the kernels `TRANSPOSE`, `PACK_TILE` and `COPY_FLUSHED`."""
    known = llvm_kernel.addresses(level)
    narrow = "_by_8" if tile_columns(level) < SIDE else ""
    transpose = known[f"transpose_32{narrow}"]
    if not arithmetic.in_bfloat16:
        return transpose, 0, known[f"copy_flushed{narrow}"]
    if arithmetic is Arithmetic.F16_SPLIT:
        return transpose, llvm_kernel.addresses(level, "_f16")["pack_f16"], 0
    return transpose, known[f"pack_{arithmetic.name.lower()}"], 0
