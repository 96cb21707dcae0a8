"""Products of matrices on AMX whose left side is laid out as tiles, once for all who read it.

A tile is 16 rows times 32 numbers in bfloat16, with its further parts behind it. It
lies in one piece, so that loading it neither crosses pages nor meets other rows in the same sets
of the cache. Behind the tiles one number for each says how large its elements are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.nonfinite import LARGEST, whole_term
from partita_cpu.gemm.tile_fields import STEP, TILE_BYTES
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, EPILOGUE, NARROW, RELEASE
from partita_cpu.jit.intrinsics.address_array import floats_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_epilogue,
    call_lay_tile,
    call_plain,
    call_tile,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.scalar.activations import activate_floats
from partita_cpu.scalar.math import copy_row

COLUMNS = 32
"""Of a tile of the result; it has as many rows."""

HALF = 16
"""Rows of a tile of the left side."""

TILE = HALF * STEP
"""Elements of it."""

CHUNK_STEPS = {1: 8, 2: 4, 3: 24}
"""Steps along k after which sums are put aside, by planes.

One or two planes of weights then stay in the first-level cache from tile to tile. Six products a
step leave time to read them from the second one, and putting sums aside takes longer.
"""

PANEL_BYTES = 768 << 10
"""Of the left side, that are read again for each column of tiles."""

SUMS = 64
"""Tiles of sums that are put aside, at most."""

_FETCHING = 4
"""Tiles down that together fetch what is needed next of the weights."""

FIELDS = (
    *("ROWS", "STEPS", "PLANES", "OUTPUTS", "BLOCKS", "CHUNK", "GROUP", "PANEL", "BY_COLUMNS"),
    "STAYS",
)
"""What the table of `multiply_laid` holds: rows, steps along k, bfloat16 numbers for one float32,
columns, tiles across; then how it is cut: steps of a chunk, tiles across whose sums are put aside
together, tiles down of a panel, and whether threads share columns and not rows; then whether the
result is laid out as tiles.
"""

(
    ROWS,
    STEPS,
    PLANES,
    OUTPUTS,
    BLOCKS,
    CHUNK,
    GROUP,
    PANEL,
    BY_COLUMNS,
    STAYS,
) = range(len(FIELDS))


def laid_size(rows: int, depth: int, planes: int) -> int:
    """16-bit numbers of a matrix that is laid out as tiles."""
    count = -(-rows // HALF) * -(-depth // STEP)
    return count * (planes * TILE + 2)


def laid_table(
    rows: int, depth: int, columns: int, planes: int, threads: int, stays: bool = False
) -> Array:
    """The table of `multiply_laid`."""
    steps, blocks, tiles = -(-depth // STEP), -(-columns // COLUMNS), -(-rows // COLUMNS)
    # With one tile down weights are read once in any case, and in order if sums are not cut.
    chunks = 1 if tiles == 1 and planes == 2 else -(-steps // CHUNK_STEPS[planes])
    chunk = -(-steps // chunks)
    by_columns = blocks >= 2 * threads and (columns >= rows or tiles < 2 * threads)
    tile_bytes = 2 * TILE * planes * 2 * chunk
    most = tiles if by_columns else -(-tiles // threads)
    panels = -(-most // max(1, PANEL_BYTES // tile_bytes))
    panel = -(-most // panels)
    group = blocks if chunks == 1 else max(1, SUMS // panel)
    cut = (chunk, group, panel, int(by_columns))
    return np.array((rows, steps, planes, columns, blocks, *cut, int(stays)), np.int64)


def thread_bytes(table: Array) -> int:
    """Scratch memory that each thread needs: a tile, then the sums that are put aside."""
    aside = 0 if table[CHUNK] == table[STEPS] else int(table[GROUP] * table[PANEL])
    return (1 + aside) * TILE_BYTES + 64


@loop
def lay_rows(
    x: Array, out: Array, kernels: Array, rows: int, depth: int, planes: int, tid: int, nt: int
) -> None:
    """Lays a matrix out as tiles.

    Args:
        x: (rows, depth), flat.
        out: `laid_size` numbers.
        kernels: `table.laid_kernels`.
        rows: Of x.
        depth: Of x.
        planes: Parts of an element.
        tid: This thread.
        nt: All threads.
    """
    blocks, steps = -(-rows // HALF), -(-depth // STEP)
    size = steps * planes * TILE
    sizes = sizes_at(address(out) + 2 * blocks * size, blocks * steps)
    for block in range(blocks * tid // nt, blocks * (tid + 1) // nt):
        place = address(x) + 4 * block * HALF * depth
        to = address(out) + 2 * block * size
        there = min(HALF, rows - block * HALF)
        found = call_lay_tile(kernels[NARROW], (place, 4 * depth, there, depth, to))
        sizes[block * steps : (block + 1) * steps] = np.int32(found)


@loop
def multiply_laid(
    x: Array,
    w: Array,
    bias: Array,
    residual: Array,
    y: Array,
    out: Array,
    scratch: Array,
    kernels: Array,
    p: Array,
    has_residual: int,
    low: float,
    high: float,
    gate: int,
    code: int,
    alpha: float,
    beta: float,
    tid: int,
    nt: int,
) -> None:
    """``y = activation(min(max(x @ w + bias + residual, low), high))``.

    Args:
        x: The left side, laid out as tiles.
        w: Packed weights, as uint16.
        bias: Packed bias.
        residual: Like y; not read unless has_residual.
        y: (rows, columns), flat; not written to if the result is laid out as tiles.
        out: The result then: `laid_size` numbers. There is no residual then.
        scratch: Bytes; `thread_bytes` for each thread.
        kernels: `table.laid_kernels`.
        p: `laid_table`.
        has_residual: 0 or 1.
        low: Lower bound.
        high: Upper bound.
        gate: 1 for HardSwish, else 0.
        code: `ActivationCode` of what bounds and gate do not express, or 0.
        alpha: Of the activation.
        beta: Of the activation.
        tid: This thread.
        nt: All threads; they share rows or columns of tiles.
    """
    blocks, steps, planes, tiles = p[BLOCKS], p[STEPS], p[PLANES], -(-p[ROWS] // COLUMNS)
    first, last, top, bottom = 0, blocks, 0, tiles
    if p[BY_COLUMNS]:
        first, last = blocks * tid // nt, blocks * (tid + 1) // nt
    else:
        top, bottom = tiles * tid // nt, tiles * (tid + 1) // nt
    room = 1 if p[CHUNK] == steps else 1 + p[GROUP] * p[PANEL]
    room = room * TILE_BYTES + 64
    if first == last or top == bottom or (tid + 1) * room > scratch.size:
        return
    start = tid * room
    start += -(address(scratch) + start) % 64
    memory = scratch[start : start + room - 64]
    halves = -(-p[ROWS] // HALF)
    sizes = sizes_at(address(x) + 2 * halves * steps * planes * TILE, halves * steps)
    split = planes > 1
    unusual = False
    if split:
        largest = np.int32(0)
        for i in range(2 * top * steps, min(2 * bottom, halves) * steps):
            largest = max(largest, sizes[i])
        unusual = bool(largest >= LARGEST)
    call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    for panel in range(top, bottom, p[PANEL]):
        stop = min(panel + p[PANEL], bottom)
        for group in range(first, last, p[GROUP]):
            end = min(group + p[GROUP], last)
            for chunk in range(0, steps, p[CHUNK]):
                _chunk(
                    x,
                    w,
                    bias,
                    residual,
                    y,
                    out,
                    sizes,
                    memory,
                    kernels,
                    p,
                    has_residual,
                    low,
                    high,
                    gate,
                    code,
                    alpha,
                    beta,
                    panel,
                    stop,
                    group,
                    end,
                    last,
                    chunk,
                    unusual,
                )
    call_plain(kernels[RELEASE], (0,))


@loop
def _chunk(
    x: Array,
    w: Array,
    bias: Array,
    residual: Array,
    y: Array,
    out: Array,
    sizes: Array,
    memory: Array,
    kernels: Array,
    p: Array,
    has_residual: int,
    low: float,
    high: float,
    gate: int,
    code: int,
    alpha: float,
    beta: float,
    panel: int,
    stop: int,
    group: int,
    end: int,
    last: int,
    chunk: int,
    unusual: bool,
) -> None:
    """Some steps of the tiles `panel` to `stop` down and `group` to `end` across."""
    steps, planes, outputs = p[STEPS], p[PLANES], p[OUTPUTS]
    depth = min(p[CHUNK], steps - chunk)
    ends = chunk + depth == steps
    step_bytes = 2 * 2 * TILE * planes
    half_bytes = steps * planes * 2 * TILE
    tile = address(memory)
    floats = floats_at(tile, TILE_BYTES // 4)
    bottom, top = np.float32(low), np.float32(high)
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    act_alpha, act_beta = np.float32(alpha), np.float32(beta)
    for block in range(group, end):
        b = address(w) + (block * steps + chunk) * step_bytes
        following = b
        if block + 1 < end:
            following = b + steps * step_bytes
        elif not ends:
            following = address(w) + (group * steps + chunk + depth) * step_bytes
        elif end < last:
            following = b + (steps - chunk) * step_bytes
        exist = min(COLUMNS, outputs - block * COLUMNS)
        offset = address(bias) + 4 * block * COLUMNS
        for t in range(panel, stop):
            n = t - panel
            rows = min(COLUMNS, p[ROWS] - t * COLUMNS)
            kernel = kernels[2 if rows > HALF else 1]
            a = address(x) + 2 * t * half_bytes + chunk * planes * 2 * TILE
            aside = tile + ((block - group) * p[PANEL] + n + 1) * TILE_BYTES
            fetching = n < _FETCHING and following != b
            ahead = following + n * (depth * step_bytes // _FETCHING) if fetching else b
            sums = (a, half_bytes, 0, 0, depth, b, 0, rows, aside if chunk else 0, ahead)
            if not ends:
                call_tile(kernel, (*sums, aside, 0, 0, 0, 0, 0, lowest, highest, 0))
                continue
            place = 4 * (t * COLUMNS * outputs + block * COLUMNS)
            other = address(residual) + place if has_residual else 0
            to = address(y) + place
            exact = False
            if unusual:
                exact = _is_unusual(sizes, 2 * t * steps, -(-rows // HALF) * steps)
                if exact:
                    _add_up(x, w, floats, p, t, block, rows)
            if p[STAYS]:
                whole = (4 * COLUMNS, COLUMNS, bottom, top, gate)
                if exact:
                    call_epilogue(kernels[EPILOGUE], (rows, tile, offset, 0, tile, *whole))
                else:
                    call_tile(kernel, (*sums, tile, offset, 0, tile, *whole))
                if code:
                    activate_floats(tile, rows * COLUMNS, code, act_alpha, act_beta)
                _lay_result(out, kernels[NARROW], p, tile, t, block, rows, exist)
                continue
            if code == 0:
                if exact:
                    rest = (offset, other, to, 4 * outputs, exist, bottom, top, gate)
                    call_epilogue(kernels[EPILOGUE], (rows, tile, *rest))
                else:
                    finish = (tile, offset, other, to, 4 * outputs, exist, bottom, top, gate)
                    call_tile(kernel, (*sums, *finish))
                continue
            if not exact:
                call_tile(kernel, (*sums, tile, 0, 0, 0, 0, 0, lowest, highest, 0))
            # Residuals lie as y does, so they are added row by row.
            together = 1 if has_residual else rows
            for r in range(0, rows, together):
                at = tile + 4 * r * COLUMNS
                beside = other + 4 * r * outputs if has_residual else 0
                rest = (offset, beside, at, 4 * COLUMNS, exist, lowest, highest, 0)
                call_epilogue(kernels[EPILOGUE], (together, at, *rest))
            activate_floats(tile, rows * COLUMNS, code, act_alpha, act_beta)
            for r in range(rows):
                first = t * COLUMNS * outputs + r * outputs + block * COLUMNS
                done = floats[r * COLUMNS : r * COLUMNS + exist]
                copy_row(done, y[first : first + exist])


@loop
def _lay_result(
    out: Array, kernel: int, p: Array, tile: int, t: int, block: int, rows: int, exist: int
) -> None:
    """Lays out a tile of the result: its columns are one step of the product that reads it."""
    steps, size = p[BLOCKS], p[PLANES] * TILE
    halves = -(-p[ROWS] // HALF)
    sizes = sizes_at(address(out) + 2 * halves * steps * size, halves * steps)
    for half in range(-(-rows // HALF)):
        place = (2 * t + half) * steps + block
        there = min(HALF, rows - half * HALF)
        source = tile + 4 * half * HALF * COLUMNS
        to = address(out) + 2 * place * size
        sizes[place] = call_lay_tile(kernel, (source, 4 * COLUMNS, there, exist, to))


@loop(inline=True)
def _is_unusual(sizes: Any, first: int, count: int) -> Any:
    """Whether a number of some tiles has no lower half: infinity, NaN, or nearly infinite."""
    largest = np.int32(0)
    for i in range(first, min(first + count, sizes.size)):
        largest = max(largest, sizes[i])
    return largest >= LARGEST


@loop
def _add_up(x: Array, w: Array, sums: Array, p: Array, t: int, block: int, rows: int) -> None:
    """A tile of sums of whole numbers; see `exact`."""
    steps, planes = p[STEPS], p[PLANES]
    for r in range(rows):
        half, line = 2 * t + r // HALF, r % HALF
        for c in range(COLUMNS):
            total = np.float32(0)
            for step in range(steps):
                place = (half * steps + step) * planes * TILE + line * STEP
                beside = (block * steps + step) * 2 * planes * TILE + c // 16 * TILE + c % 16 * 2
                for k in range(STEP):
                    at = beside + k // 2 * 32 + k % 2
                    total += whole_term(x, place + k, TILE, w, at, planes)
            sums[r * COLUMNS + c] = total
