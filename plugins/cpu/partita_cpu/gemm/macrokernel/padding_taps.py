"""Taps that lie on padding: tiles skip them where image rows are read in the tensor itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.product_records import PanelContext
from partita_cpu.gemm.tile_fields import (
    DEPTH,
    DILATION_ACROSS,
    DILATION_DOWN,
    HEIGHT,
    LEFT,
    OUT_HEIGHT,
    ROW,
    SLICES,
    STRIDE_ACROSS,
    STRIDE_DOWN,
    TAP_BYTES,
    TAPS,
    TAPS_ACROSS,
    TAPS_DOWN,
    TILE_COLUMNS,
    TOP,
    WIDTH,
)
from partita_cpu.jit.intrinsics.address_array import floats_at
from partita_cpu.jit.intrinsics.address_call import call_tile
from partita_cpu.jit.loop_kernel import loop

_LOWEST, _HIGHEST = np.float32(-np.inf), np.float32(np.inf)

_FETCHED = 4
"""A tile asks for one in so many of the bytes of weights that it reads."""


@loop(inline=True)
def _lines_inside(p: Array, line: int) -> Any:
    """Which rows of taps lie on the image under a line of the result: first, and behind the last.

    Args:
        p: `Plan.table`.
        line: Of the result, counted through all images.
    """
    place = line % p[OUT_HEIGHT] * p[STRIDE_DOWN] - p[TOP]
    down, apart = p[TAPS_DOWN], p[DILATION_DOWN]
    low, high = 0, down
    if place < 0:
        low = min(-(place // apart), down)
    if place + (down - 1) * apart >= p[HEIGHT]:
        high = max((p[HEIGHT] - 1 - place) // apart + 1, low)
    return low, high


@loop(inline=True)
def taps_inside(p: Array, line: int, first: int, behind: int) -> Any:
    """Which of some taps a line of the result needs: those at both ends may lie in the padding.

    Args:
        p: `Plan.table`.
        line: Of the result, counted through all images.
        first: The first tap.
        behind: Behind the last one.

    Returns:
        The first one that is left, and behind the last one.
    """
    down = p[TAPS_DOWN]
    low, high = _lines_inside(p, line)
    if low == 0 and high == down:
        return first, behind
    of_slice = p[TAPS] // p[SLICES]
    across = of_slice // down
    begin, end = first % of_slice, (behind - 1) % of_slice + 1
    begin = min(first + max(low * across - begin, 0), behind)
    return begin, max(behind - max(end - high * across, 0), begin)


@loop
def edge_taps(
    tile: tuple[int, int, int, int, int, int], line: int, b: int, context: PanelContext
) -> Any:
    """Adds up columns of taps that lie beside the image under some of a tile's pixels.

    They are added up for the others before the columns that lie on it under all pixels.

    Args:
        tile: Address of what the first tap meets under its first pixel, that pixel, how many there
            are, in front of which place the kernels for so many rows are, where sums go, and what
            is needed next of the weights.
        line: Of the result, counted through all images.
        b: Address of the packed weights.
        context: Kernels and plan.

    Returns:
        The first tap that is left, how many are, the sums to go on from or 0, and what is needed
        next of the weights.
    """
    kernels, p = context.kernels, context.p
    source, pixel, rows, of_rows, sums, ahead = tile
    down, across, step, apart = p[TAPS_DOWN], p[TAPS_ACROSS], p[STRIDE_ACROSS], p[DILATION_ACROSS]
    low, high = _lines_inside(p, line)
    first = pixel * step - p[LEFT]
    last, width = first + (rows - 1) * step, p[WIDTH]
    begin = p[LEFT] // apart
    behind = begin + 1
    if low == 0 and high == down:
        while begin > 0 and first + (begin - 1) * apart >= 0:
            begin -= 1
        while behind < across and last + behind * apart < width:
            behind += 1
    start, row_bytes = 0, 4 * p[TILE_COLUMNS]
    for column in range(across):
        place = first + column * apart
        top = max(0, -(place // step))
        bottom = rows - max(0, -((width - 1 - last - column * apart) // step))
        if begin <= column < behind or top >= bottom or low == high:
            continue
        if start == 0 and bottom - top < rows:
            cleared = floats_at(sums, rows * p[TILE_COLUMNS])
            for i in range(cleared.size):
                cleared[i] = np.float32(0)
            start = sums
        tap, further = column * down + low, top * row_bytes
        places, weights = context.offsets + 8 * tap, b + tap * p[TAP_BYTES]
        its = source + top * p[ROW], p[ROW], places, high - low, p[DEPTH], weights, 0
        from_here = start + further if start else 0
        rest = (sums + further, 0, 0, 0, 0, 0, _LOWEST, _HIGHEST, 0)
        kernel = kernels[of_rows + bottom - top]
        call_tile(kernel, (*its, bottom - top, from_here, ahead, *rest))
        start = sums
        ahead += (high - low) * p[TAP_BYTES] // _FETCHED
    return begin * down + low, (behind - 1 - begin) * down + high - low, start, ahead
