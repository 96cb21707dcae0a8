"""Calls of 8-bit vector kernels, and of those that requantize sums in registers.

Where :mod:`partita_cpu.llvm.tiles.dot_levels` serves, sums are not stored as a tile in between.
"""

from __future__ import annotations

from typing import Any

from partita_cpu.gemm.tile_kernels import (
    DOTS,
    IN_REGISTERS,
    MOST_DOTS,
    PART_DOTS,
    PART_PLACES,
    PREPARE,
)
from partita_cpu.jit.intrinsics.address_call import call_dot_levels, call_prepare_end
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.linalg.register_tiles import PANEL
from partita_cpu.llvm.tiles.dot_int8 import PART

FETCHES = 8
"""Calls of kernels in vectors that fetch a panel ahead: each as much as `dot_int8` says."""


@loop(inline=True)
def fetched_ahead(weights: int, following: int, call: int, size: int) -> Any:
    """What a kernel fetches while it computes, in the numbered call with the same weights.

    Args:
        weights: Address of the panel that is multiplied by.
        following: That of the next one.
        call: How many calls there were before.
        size: Bytes of a panel.
    """
    return following + call * (size // FETCHES) if call < FETCHES else weights


@loop(inline=True)
def dots_of(columns: int) -> Any:
    """Where a table has the kernels without tiles for so many columns, and how many rows they take.

    Args:
        columns: Of a panel, those that exist.
    """
    dots, most = DOTS, MOST_DOTS
    if columns <= PANEL - PART:
        dots = PART_DOTS + PART_PLACES * ((columns - 1) // PART)
        most = dots
    return dots, most


@loop(inline=True)
def prepare_end(
    kernels: Any, end: int, columns: int, column: int, numbers: Any, zero: int, scale: Any, to: Any
) -> None:
    """Makes the numbers that sums of a panel end by.

    Args:
        kernels: `tile_kernels.byte_kernels`.
        end: Address of `dot_levels.END_BYTES`.
        columns: Of the panel, those that exist.
        column: The first of them.
        numbers: Where sums of the columns of the weights are, biases and factors.
        zero: What the sums of columns are multiplied by and taken off.
        scale: One factor.
        to: The least level, and that of 0.
    """
    at = 4 * column
    places = numbers[0] + at, zero, numbers[1] + at, numbers[2] + at
    call_prepare_end(kernels[PREPARE], (end, columns, *places, scale, to[0], to[1]))


@loop(inline=True)
def multiply_to_levels(
    kernels: Any, count: int, columns: int, rows: Any, panel: Any, fetched: int, end: int, to: Any
) -> Any:
    """Levels of neighbouring rows and one panel, a few at a time.

    Args:
        kernels: `tile_kernels.byte_kernels`.
        count: Rows.
        columns: Of the panel, those that exist.
        rows: Address of the first, bytes from one to the next, runs of each and bytes from one of
            these to the next; address of what is added to sums of the first, or 0, and bytes from
            row to row there.
        panel: Addresses of the panel and of the next one, quads of a run, and bytes of the panel.
        fetched: Calls with this panel before.
        end: What `prepare_end` wrote.
        to: Address of the first level, and bytes from row to row.

    Returns:
        Calls with this panel until now.
    """
    dots, most = dots_of(columns)
    pieces = -(-count // kernels[most])
    for piece in range(pieces):
        done = count * piece // pieces
        some = count * (piece + 1) // pieces - done
        ahead = fetched_ahead(panel[0], panel[1], fetched + piece, panel[3])
        places = rows[0] + done * rows[1], rows[1], rows[2], rows[3], panel[0], panel[2], ahead
        starts = rows[4] + done * rows[5]
        kernel = kernels[IN_REGISTERS + dots + some]
        call_dot_levels(kernel, (*places, starts, end, to[0] + done * to[1], to[1]))
    return fetched + pieces
