"""Operands that exist as AMX tiles, beside their rows or instead of them."""

from __future__ import annotations

import numpy as np

from partita.lowering import Builder, Operand
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.packed_lhs.packed_lhs_table import packed_lhs_size
from partita_cpu.gemm.packed_lhs.product import pack_lhs

_TILES, _ONLY_TILES = "tiles", "only tiles"
"""What tiles of an operand are known by, and that its rows are not there."""


def packed_lhs(
    b: Builder, x: Operand, rows: int, depth: int, arithmetic: Arithmetic, kernels: Operand
) -> Operand:
    """A matrix laid out as tiles; operators that multiply the same one share it.

    Args:
        b: Records it.
        x: A matrix of float32 [rows, depth].
        rows: Its rows.
        depth: Its columns.
        arithmetic: Says in how many bfloat16 each element is kept.
        kernels: Addresses of the kernels that lay it out.

    Returns:
        The tiles, as uint16.
    """
    planes = arithmetic.planes

    def lay_out() -> Operand:
        tiles = b.empty((packed_lhs_size(rows, depth, planes),), np.uint16)
        b.call(pack_lhs, b.flat(x), tiles, kernels, rows, depth, planes, exec_type="reorder")
        return tiles

    return b.once(x, (_TILES, arithmetic), lay_out)


def note_tiles(b: Builder, x: Operand, arithmetic: Arithmetic, tiles: Operand) -> None:
    """Notes that a left side is there as tiles, which `packed_lhs` then returns."""
    b.once(x, (_TILES, arithmetic), lambda: tiles)


def note_only_tiles(b: Builder, x: Operand, arithmetic: Arithmetic, tiles: Operand) -> None:
    """Notes that a left side is there as tiles alone; its rows must not be read."""
    note_tiles(b, x, arithmetic, tiles)
    b.once(x, (_ONLY_TILES, arithmetic), lambda: tiles)


def has_only_tiles(b: Builder, x: Operand, arithmetic: Arithmetic) -> bool:
    """Whether `note_only_tiles` has noted that."""
    return b.once(x, (_ONLY_TILES, arithmetic), lambda: x) is not x
