"""Products in split bfloat16 whose factors may be infinite or NaN, computed from float32 instead.

A float32 is split as ``x = high + low`` with ``low = x - high``, which is NaN where x is infinite;
so is infinity times a zero that pads a tile. Tiles with such numbers are computed again term by
term, from joined numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.product_records import PanelContext, TileRange
from partita_cpu.gemm.tile_fields import (
    ARITHMETIC,
    DEPTH,
    PLANE_BYTES,
    ROW,
    RUN,
    STEP,
    STEP_BYTES,
    TAPS,
    TILE_COLUMNS,
)
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.intrinsics.address_array import floats_at, integers_at, shorts_at
from partita_cpu.jit.intrinsics.address_call import float_bits
from partita_cpu.jit.loop_kernel import loop

LARGEST = 0x7F7F8000
"""The first float32 that rounds to an infinite bfloat16, as bits."""

_EXPONENT = 0x7F80
"""All ones in a bfloat16 that is infinite or NaN."""

_PLANE = 2 * 16 * STEP
"""Numbers from one part of the packed weights of a step to the next."""


@register_jitable
def joined_term(x: Array, at: int, plane: int, w: Array, index: int, parts: int) -> Any:
    """The product of two numbers that are kept in parts.

    Args:
        x: Numbers that are laid out, as uint16.
        at: The first part of one of them.
        plane: From one part to the next.
        w: Packed weights, as uint16.
        index: The first part of one of them.
        parts: How many there are.
    """
    weight = _float(w[index])
    for part in range(1, parts):
        weight += _float(w[index + _PLANE * part])
    return joined_number(x, at, plane, parts) * weight


@register_jitable
def joined_number(x: Array, at: int, plane: int, parts: int) -> Any:
    """A number that is kept in parts; `joined_term` says how."""
    value = _float(x[at])
    if np.int64(x[at]) & _EXPONENT != _EXPONENT:
        for part in range(1, parts):
            value += _float(x[at + plane * part])
    return value


@register_jitable
def _float(bits: Any) -> Any:
    return float_bits(np.int64(bits) << 16)


@loop
def exact_tile(
    a: int, w: int, tiles: TileRange, tile: int, context: PanelContext, rows: int
) -> None:
    """Computes a tile again whose input is infinite, NaN, or nearly so.

    Args:
        a: Address of the tile's first row of input.
        w: Address of its weights.
        tiles: Which terms are added up.
        tile: Address of the tile, which is written over.
        context: The panel's plan.
        rows: Of the tile.
    """
    p = context.p
    planes = max(p[ARITHMETIC], 1)
    plane, columns = p[PLANE_BYTES] // 2, p[TILE_COLUMNS]
    first_step, steps = tiles.first_tap * p[DEPTH], tiles.last_tap * p[DEPTH]
    places = integers_at(context.offsets, p[TAPS])
    sums = floats_at(tile, rows * columns)
    step_size = p[STEP_BYTES] // 2
    weights = shorts_at(w, steps * planes * columns * step_size)
    half = 16 * step_size
    for r in range(rows):
        for c in range(columns):
            total = np.float32(0)
            for step in range(first_step, steps):
                tap = step // p[DEPTH]
                inside = (step - tap * p[DEPTH]) * step_size
                values = shorts_at(a + r * p[ROW] + places[tap] + 2 * inside, plane * planes)
                block = step * planes * columns * step_size
                block += c // 16 * half + c % 16 * 2
                for k in range(min(step_size, p[RUN] - inside)):
                    index = block + k // 2 * 32 + k % 2
                    total += joined_term(values, k, plane, weights, index, planes)
            sums[r * columns + c] = total
