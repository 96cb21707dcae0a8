"""Addresses of the kernels of attention over a cache, by instruction set."""

from __future__ import annotations

import functools

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.arithmetic import tile_columns
from partita_cpu.gemm.tile_fields import STEP
from partita_cpu.gemm.tile_kernels import NARROW_ROWS, SLOTS, configure_tiles
from partita_cpu.jit import llvm_kernel
from partita_cpu.llvm.attention import attend, attend_few
from partita_cpu.llvm.attention.attend_few import Elements
from partita_cpu.llvm.copies.transpose_block import SIDE
from partita_cpu.llvm.levels import Level

SOFTMAX, TRANSPOSE = 0, SLOTS
"""Places that only kernels of attention have."""

ATTENTION_SLOTS = SLOTS + 1


@functools.cache
def attention_kernels(level: Level, planes: int = 0) -> Array:
    """The kernels of attention over a cache: those of `attend.products` by number of rows.

    In the place of `SOFTMAX` that of the softmax, in the place of `TRANSPOSE` the one for a block
    of keys whose sides are `SIDE`, or the columns of a tile if these are fewer; in that of
    `NARROW_ROWS` the one that makes bfloat16 of rows of floats.

    Args:
        level: Whose kernels.
        planes: 0 if they multiply floats, else of how many bfloat16 a factor is the sum: by tiles
            of AMX one or two, elsewhere one where `attend.in_pairs` says so.
    """
    table = np.zeros(ATTENTION_SLOTS, np.int64)
    base, known = llvm_kernel.addresses(level), llvm_kernel.addresses(level, "_attention")
    tiles, end = planes > 0 and level.tiles, attend.PAIRED if planes else ""
    if planes:
        table[NARROW_ROWS] = base["narrow_bf16x3_rows" if planes > 1 else "narrow_bf16_rows"]
    if tiles:
        end = f"{attend.TILED}{planes}"
        configure_tiles(table, level, STEP)
    for rows in range(1, (attend.TILE_ROWS if tiles else level.rows) + 1):
        table[rows] = known[f"products{end}_{-(-rows // 16) if tiles else rows}"]
    name = "transpose_32" if tile_columns(level) >= SIDE else "transpose_32_by_8"
    table[SOFTMAX], table[TRANSPOSE] = known[f"online_softmax{end}"], base[name]
    return table


MOST_QUERIES, SCORES = 1, 2
"""Places that only kernels of few queries have: how many of one's, and the first ones; sums of
values come behind as many scores. The softmax is in the place of `SOFTMAX`."""


@functools.cache
def few_query_kernels(level: Level, elements: Elements) -> Array:
    """The kernels of attention of few queries over a cache of such elements, by their number.

    All is 0 where a level has none.
    """
    most = attend_few.most_queries(level)
    table = np.zeros(SCORES + 2 * most, np.int64)
    if not level.native:
        return table
    known = llvm_kernel.addresses(level, attend_few.part_of(elements))
    table[SOFTMAX], table[MOST_QUERIES] = known["online_softmax"], most
    for row in range(most):
        table[SCORES + row] = known[f"scores_{row + 1}"]
        table[SCORES + most + row] = known[f"sums_{row + 1}"]
    return table
