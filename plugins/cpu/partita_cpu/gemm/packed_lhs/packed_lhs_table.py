"""Blocking of products with a packed left side: the table that loops read, and scratch memory."""

from __future__ import annotations

from typing import NamedTuple

from partita.lowering import Array
from partita.lowering.shapes.symbolic_size import evaluated, integer, integers
from partita_cpu.gemm.shares import shares_across
from partita_cpu.gemm.tile_fields import STEP, TILE_BYTES
from partita_cpu.machine_model import MachineModel

COLUMNS = 32
"""Of a tile of the result; it has as many rows."""

HALF = 16
"""Rows of a tile of the left side."""

TILE = HALF * STEP
"""Elements of it."""

WEIGHTS_SHARE = 3 / 8
"""Of the first-level cache, for the weights of a tile's columns that stay there from tile to tile.

Behind so many steps along k sums are put aside. Tiles of the left side and of sums take the rest.
"""

MANY_WEIGHTS_SHARE = 9 / 128
"""The same of the second-level cache, for weights in three planes.

Six products a step leave time to read them from there, and putting sums aside takes longer.
"""

PANEL_SHARE = 3 / 8
"""Of the second-level cache, for the left side, which is read again for each column of tiles."""

SUMS = 64
"""Tiles of sums that are put aside, at most."""

(
    ROWS,  # of the product
    STEPS,  # steps along k
    PLANES,  # bfloat16 numbers that one float32 is split into
    OUTPUTS,  # columns of the product
    BLOCKS,  # columns of tiles
    CHUNK,  # steps along k before sums are put aside
    GROUP,  # columns of tiles whose sums are put aside together
    PANEL,  # rows of tiles of a panel
    SHARES_ACROSS,  # into how many shares threads divide the columns
    STAYS,  # whether the result is laid out as tiles
) = range(10)
"""Places of the table of `multiply_packed`."""


def packed_lhs_size(rows: int, depth: int, planes: int) -> int:
    """16-bit numbers of a matrix that is laid out as tiles."""
    count = -(-rows // HALF) * -(-depth // STEP)
    return count * (planes * TILE + 2)


class MatrixSizes(NamedTuple):
    """A product of matrices: (rows, depth) by (depth, columns), each number in so many planes."""

    rows: int
    depth: int
    columns: int
    planes: int


def packed_lhs_table(
    product: MatrixSizes, machine: MachineModel, threads: int, stays: bool = False
) -> Array:
    """The table of `multiply_packed`.

    Args:
        product: What is multiplied.
        machine: What it is cut for.
        threads: Threads that share it.
        stays: Whether the result is laid out as tiles too.
    """
    rows, depth, columns, planes = product
    steps, blocks, tiles = -(-depth // STEP), -(-columns // COLUMNS), -(-rows // COLUMNS)
    # With one tile down weights are read once in any case, and in order if sums are not cut.
    chunks = 1 if tiles == 1 and planes == 2 else -(-steps // _chunk_steps(machine, planes))
    chunk = -(-steps // chunks)
    across = evaluated(_shares, tiles, blocks, threads, columns, rows)
    tile_bytes = 2 * TILE * planes * 2 * chunk
    most = -(-tiles // (threads // across))
    panels = -(-most // max(1, machine.l2_bytes(PANEL_SHARE) // tile_bytes))
    panel = -(-most // panels)
    group = blocks if chunks == 1 else evaluated(max, 1, SUMS // panel)
    cut = (chunk, group, panel, across)
    return integers((rows, steps, planes, columns, blocks, *cut, int(stays)))


def _shares(tiles: int, blocks: int, threads: int, columns: int, rows: int) -> int:
    return shares_across(tiles, blocks, threads, columns / rows)


def _chunk_steps(machine: MachineModel, planes: int) -> int:
    """Steps along k after which sums are put aside."""
    held = machine.l2_bytes(MANY_WEIGHTS_SHARE) if planes > 2 else machine.l1_bytes(WEIGHTS_SHARE)
    step_bytes = 2 * COLUMNS * STEP * planes
    return max(1, held // step_bytes)


def thread_bytes(table: Array) -> int:
    """Scratch memory that each thread needs: a tile, then the sums that are put aside."""
    aside = 0 if table[CHUNK] == table[STEPS] else integer(table[GROUP] * table[PANEL])
    return (1 + aside) * TILE_BYTES + 64
