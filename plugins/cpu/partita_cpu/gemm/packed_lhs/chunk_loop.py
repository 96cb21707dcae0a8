"""The inner loop: a chunk of steps along k for some tiles of the result, and their epilogue."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.nonfinite import LARGEST, joined_term
from partita_cpu.gemm.packed_lhs.packed_lhs_table import (
    BLOCKS,
    CHUNK,
    COLUMNS,
    HALF,
    OUTPUTS,
    PANEL,
    PLANES,
    ROWS,
    STAYS,
    STEPS,
    TILE,
)
from partita_cpu.gemm.product_records import Epilogue, ProductArrays
from partita_cpu.gemm.tile_activation import TileSums, activate_in_place, activate_sums
from partita_cpu.gemm.tile_fields import STEP, TILE_BYTES
from partita_cpu.gemm.tile_kernels import ACTIVATE_FLOATS, EPILOGUE, NARROW
from partita_cpu.jit.intrinsics.address_array import floats_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_epilogue,
    call_pack_tile,
    call_tile,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.scalar.math import copy_row

_FETCHING = 4
"""Tiles down that together fetch what is needed next of the weights."""


class Weights(NamedTuple):
    """Where the weights of a chunk are.

    Attributes:
        first: Address of those of the first tile across.
        pitch: Bytes from one tile across to the next.
        following: Address of those of the next chunk; `first` if there is none.
    """

    first: int
    pitch: int
    following: int


class PackedLhs(NamedTuple):
    """What is laid out as tiles, and memory for one.

    Attributes:
        x: The left side.
        sizes: How large the elements of each of its tiles are.
        out: The result, if it is laid out so.
        tile: Address of memory for a tile, and of the sums that are put aside behind it.
    """

    x: Array
    sizes: Array
    out: Array
    tile: int


class Chunk(NamedTuple):
    """Some steps along k of some tiles.

    Attributes:
        panel: The first tile down.
        stop: Behind the last one.
        group: The first tile across.
        end: Behind the last one.
        step: The first step.
        unusual: Whether some number of the left side has no lower half.
    """

    panel: int
    stop: int
    group: int
    end: int
    step: int
    unusual: bool


@loop
def multiply_chunk(
    lhs: PackedLhs,
    arrays: ProductArrays,
    weights: Weights,
    kernels: Array,
    p: Array,
    epilogue: Epilogue,
    cut: Chunk,
) -> None:
    """Some steps of some tiles; behind the last step the tiles are finished.

    Args:
        lhs: The left side, and memory for a tile and for sums that are put aside.
        arrays: Bias, residual and result.
        weights: Those of these steps, and of the next ones.
        kernels: `tile_kernels.packed_lhs_kernels`.
        p: Sizes, as `packed_lhs.table` names them.
        epilogue: What happens to sums.
        cut: Which steps of which tiles.
    """
    steps, planes, tile = p[STEPS], p[PLANES], lhs.tile
    depth = min(p[CHUNK], steps - cut.step)
    ends = cut.step + depth == steps
    step_bytes = 2 * 2 * TILE * planes
    half_bytes = steps * planes * 2 * TILE
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    for block in range(cut.group, cut.end):
        b = weights.first + (block - cut.group) * weights.pitch
        following = b + weights.pitch
        if block + 1 == cut.end:
            following = b if weights.following == weights.first else weights.following
        for t in range(cut.panel, cut.stop):
            n = t - cut.panel
            rows = min(COLUMNS, p[ROWS] - t * COLUMNS)
            kernel = kernels[2 if rows > HALF else 1]
            a = address(lhs.x) + 2 * t * half_bytes + cut.step * planes * 2 * TILE
            aside = tile + ((block - cut.group) * p[PANEL] + n + 1) * TILE_BYTES
            fetching = n < _FETCHING and following != b
            ahead = following + n * (depth * step_bytes // _FETCHING) if fetching else b
            start = aside if cut.step else 0
            sums = (a, half_bytes, 0, 0, depth, b, 0, rows, start, ahead)
            if not ends:
                call_tile(kernel, (*sums, aside, 0, 0, 0, 0, 0, lowest, highest, 0))
                continue
            exact = cut.unusual and is_unusual(lhs.sizes, 2 * t * steps, -(-rows // HALF) * steps)
            if exact:
                _add_up(lhs, arrays.w, p, t, block, rows)
            if p[STAYS] or epilogue.code == 0:
                to, residual = tile, 0
                if not p[STAYS]:
                    place = 4 * (t * COLUMNS * p[OUTPUTS] + block * COLUMNS)
                    to = address(arrays.y) + place
                    residual = address(arrays.residual) + place if epilogue.has_residual else 0
                bias = address(arrays.bias) + 4 * block * COLUMNS
                pitch = COLUMNS if p[STAYS] else p[OUTPUTS]
                exist = COLUMNS if p[STAYS] else min(COLUMNS, p[OUTPUTS] - block * COLUMNS)
                bounds = np.float32(epilogue.low), np.float32(epilogue.high)
                finish = (bias, residual, to, 4 * pitch, exist, *bounds, epilogue.gate)
                if exact:
                    call_epilogue(kernels[EPILOGUE], (rows, tile, *finish))
                else:
                    call_tile(kernel, (*sums, tile, *finish))
            elif not exact:
                call_tile(kernel, (*sums, tile, 0, 0, 0, 0, 0, lowest, highest, 0))
            if p[STAYS]:
                _lay_result(lhs, kernels, p, epilogue, t, block)
            elif epilogue.code:
                _activate_tile(tile, arrays, kernels, p, epilogue, t, block)


@loop
def _activate_tile(
    tile: int,
    arrays: ProductArrays,
    kernels: Array,
    p: Array,
    epilogue: Epilogue,
    t: int,
    block: int,
) -> None:
    """Finishes a tile of sums whose activation is more than bounds and a gate.

    Args:
        tile: Address of the sums.
        arrays: Bias, residual and result.
        kernels: `packed_lhs_kernels`.
        p: The table.
        epilogue: What is done with sums.
        t: The tile of rows.
        block: The block of columns.
    """
    outputs = p[OUTPUTS]
    rows, exist = min(COLUMNS, p[ROWS] - t * COLUMNS), min(COLUMNS, outputs - block * COLUMNS)
    place = t * COLUMNS * outputs + block * COLUMNS
    bias = address(arrays.bias) + 4 * block * COLUMNS
    other = address(arrays.residual) + 4 * place if epilogue.has_residual else 0
    sums = TileSums(tile, rows, COLUMNS, exist, bias, other, 4 * outputs)
    activate_sums(sums, kernels[EPILOGUE], kernels[ACTIVATE_FLOATS], epilogue)
    floats = floats_at(tile, TILE_BYTES // 4)
    for r in range(rows):
        done = floats[r * COLUMNS : r * COLUMNS + exist]
        copy_row(done, arrays.y[place + r * outputs : place + r * outputs + exist])


@loop
def _lay_result(
    lhs: PackedLhs, kernels: Array, p: Array, epilogue: Epilogue, t: int, block: int
) -> None:
    """Lays out a tile of the result: its columns are one step of the product that reads it.

    Args:
        lhs: Where sums are, and where they go.
        kernels: `packed_lhs_kernels`.
        p: The table.
        epilogue: What is done with sums.
        t: The tile of rows.
        block: The block of columns.
    """
    tile, out = lhs.tile, lhs.out
    rows = min(COLUMNS, p[ROWS] - t * COLUMNS)
    exist = min(COLUMNS, p[OUTPUTS] - block * COLUMNS)
    if epilogue.code:
        activate_in_place(tile, rows * COLUMNS, kernels[ACTIVATE_FLOATS], epilogue)
    steps, size = p[BLOCKS], p[PLANES] * TILE
    halves = -(-p[ROWS] // HALF)
    sizes = sizes_at(address(out) + 2 * halves * steps * size, halves * steps)
    for half in range(-(-rows // HALF)):
        place = (2 * t + half) * steps + block
        there = min(HALF, rows - half * HALF)
        source = tile + 4 * half * HALF * COLUMNS
        to = address(out) + 2 * place * size
        sizes[place] = call_pack_tile(kernels[NARROW], (source, 4 * COLUMNS, there, exist, to))


@loop(inline=True)
def is_unusual(sizes: Any, first: int, count: int) -> Any:
    """Whether a number of some tiles has no lower half: infinity, NaN, or nearly infinite."""
    largest = np.int32(0)
    for i in range(first, min(first + count, sizes.size)):
        largest = max(largest, sizes[i])
    return largest >= LARGEST


@loop
def _add_up(lhs: PackedLhs, w: Array, p: Array, t: int, block: int, rows: int) -> None:
    """A tile of sums of joined numbers; see `nonfinite`.

    Args:
        lhs: The left side, and memory for sums.
        w: Packed weights.
        p: The table.
        t: The tile of rows.
        block: The block of columns.
        rows: Rows that exist.
    """
    steps, planes = p[STEPS], p[PLANES]
    x, sums = lhs.x, floats_at(lhs.tile, TILE_BYTES // 4)
    for r in range(rows):
        half, line = 2 * t + r // HALF, r % HALF
        for c in range(COLUMNS):
            total = np.float32(0)
            for step in range(steps):
                place = (half * steps + step) * planes * TILE + line * STEP
                beside = (block * steps + step) * 2 * planes * TILE + c // 16 * TILE + c % 16 * 2
                for k in range(STEP):
                    at = beside + k // 2 * 32 + k % 2
                    total += joined_term(x, place + k, TILE, w, at, planes)
            sums[r * COLUMNS + c] = total
