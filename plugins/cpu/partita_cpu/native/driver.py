"""The loop over tiles: what every matrix product and convolution with packed weights runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.kernels.activation_scalar import activate
from partita_cpu.kernels.numba_jit import jit
from partita_cpu.kernels.scalar import like
from partita_cpu.native.invoke import (
    address,
    call_epilogue,
    call_plain,
    call_tile,
    float_bits,
)
from partita_cpu.native.panel import lay_columns, lay_halo
from partita_cpu.native.plan import (
    ARITHMETIC,
    BLOCK_BYTES,
    BLOCKS,
    BY_COLUMNS,
    CELL,
    CHANNELS,
    DEPTH,
    EVEN,
    FLAT,
    GRAIN,
    GROUP_CHANNELS,
    GROUP_OUTPUTS,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTPUTS,
    PANEL_UNITS,
    PITCH,
    PLANE_BYTES,
    ROW,
    RUN,
    SOURCE,
    STEP,
    STRIDE_DOWN,
    TAPS,
    THREAD_BYTES,
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    UNITS,
)
from partita_cpu.native.table import CONFIG, CONFIGURE, EPILOGUE, RELEASE, Arithmetic

_HALO = 1
_COLUMNS = 2
_SPLIT = int(Arithmetic.BF16X3)
_LARGEST = 0x7F7F8000  # the first float32 that rounds to an infinite bfloat16


@jit
def multiply_tiles(
    x: Array,
    w: Array,
    bias: Array,
    residual: Array,
    y: Array,
    scratch: Array,
    offsets: Array,
    kernels: Array,
    p: Array,
    has_residual: int,
    low: float,
    high: float,
    code: int,
    alpha: float,
    beta: float,
    tid: int,
    nt: int,
) -> None:
    """``y = activation(min(max(conv(x, w) + bias + residual, low), high))``, channels last.

    Args:
        x: Input pixels, flat.
        w: Packed weights, as uint16.
        bias: Packed bias.
        residual: Like y; not read unless has_residual.
        y: Output pixels, flat.
        scratch: Bytes; `Plan.thread_bytes` for each thread.
        offsets: `Plan.offsets`.
        kernels: `table.tile_kernels`.
        p: `Plan.table`.
        has_residual: 0 or 1.
        low: Lower bound.
        high: Upper bound.
        code: `ActivationCode` of what bounds do not express, or 0.
        alpha: Of the activation.
        beta: Of the activation.
        tid: This thread.
        nt: All threads; they share rows or columns of tiles.
    """
    threads = min(nt, scratch.size // p[THREAD_BYTES])
    if tid >= threads:
        return
    start = tid * p[THREAD_BYTES]
    start += -(address(scratch) + start) % 64
    memory = scratch[start : (tid + 1) * p[THREAD_BYTES]]
    blocks, units, grain = p[BLOCKS], p[UNITS], p[GRAIN]
    all_blocks = p[OUTPUTS] // p[GROUP_OUTPUTS] * blocks
    first_block, last_block, unit, end = 0, all_blocks, 0, units
    if p[BY_COLUMNS]:
        first_block = all_blocks * tid // threads
        last_block = all_blocks * (tid + 1) // threads
    else:
        grains = -(-units // grain)
        unit = grains * tid // threads * grain
        end = min(grains * (tid + 1) // threads * grain, units)
    if first_block == last_block:
        return
    if p[ARITHMETIC]:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    while unit < end:
        stop = min(unit + p[PANEL_UNITS], end)
        if p[SOURCE] == _HALO:
            stop = min(stop, (unit // p[OUT_HEIGHT] + 1) * p[OUT_HEIGHT])
        for group in range(first_block // blocks, (last_block - 1) // blocks + 1):
            first = max(first_block - group * blocks, 0)
            last = min(last_block - group * blocks, blocks)
            _panel(
                x,
                w,
                bias,
                residual,
                y,
                memory,
                offsets,
                kernels,
                p,
                has_residual,
                low,
                high,
                code,
                alpha,
                beta,
                group,
                first,
                last,
                unit,
                stop,
            )
        unit = stop
    if p[ARITHMETIC]:
        call_plain(kernels[RELEASE], (0,))


@jit
def _panel(
    x: Array,
    w: Array,
    bias: Array,
    residual: Array,
    y: Array,
    memory: Array,
    offsets: Array,
    kernels: Array,
    p: Array,
    has_residual: int,
    low: float,
    high: float,
    code: int,
    alpha: float,
    beta: float,
    group: int,
    first_block: int,
    last_block: int,
    unit: int,
    stop: int,
) -> None:
    """Some rows of the result times some columns of one group."""
    arithmetic, source, row = p[ARITHMETIC], p[SOURCE], p[ROW]
    planes = p[PLANE_BYTES] * (2 if arithmetic == _SPLIT else 1)
    base = address(memory)
    floats = memory[: memory.size // 4 * 4].view(np.float32)
    largest = 0
    a = base
    if source == _HALO:
        largest = lay_halo(address(x), base, kernels, p, group, unit, stop)
    elif source == _COLUMNS:
        largest = lay_columns(address(x), base, kernels, p, group, unit, stop)
    else:
        a = address(x) + 4 * (unit * p[CHANNELS] + group * p[GROUP_CHANNELS])
    # Infinity has no lower half, and may not meet the zeros that fill up a run.
    filled = p[RUN] != p[DEPTH] * STEP
    exact = largest >= _LARGEST and (arithmetic == _SPLIT or filled)
    tile = base + planes
    zeros = floats[(planes + TILE_BYTES) // 4 :]
    for i in range(p[TILE_COLUMNS]):
        zeros[i] = np.float32(0)
    columns, width = p[TILE_COLUMNS], p[OUT_WIDTH]
    lines, length, pitch, first_pixel = 1, stop - unit, stop - unit, unit
    line_bytes = p[STRIDE_DOWN] * p[PITCH] * p[CELL] * (2 if arithmetic else 4)
    if source == _HALO:
        first_pixel = unit * width
        pitch = p[PITCH]
        if p[FLAT]:
            length = (stop - unit - 1) * pitch + width
        else:
            lines, length = stop - unit, width
    else:
        width = length
    most = p[TILE_ROWS]
    tiles = -(-length // most)
    bottom, top = np.float32(low), np.float32(high)
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    act_alpha, act_beta = like(floats[0], alpha), like(floats[0], beta)
    for block in range(first_block, last_block):
        number = group * p[BLOCKS] + block
        b = address(w) + number * p[BLOCK_BYTES]
        exist = min(columns, p[GROUP_OUTPUTS] - block * columns)
        first_column = group * p[GROUP_OUTPUTS] + block * columns
        offset = address(bias) + 4 * number * columns
        for line in range(lines):
            for t in range(tiles):
                if p[EVEN]:
                    f = length * t // tiles
                    rows = length * (t + 1) // tiles - f
                else:
                    f = t * most
                    rows = min(most, length - f)
                at = a + line * line_bytes + f * row
                if exact:
                    _exact_tile(at - base, w, number, memory, offsets, p, rows)
                else:
                    call_tile(
                        kernels[rows],
                        (at, row, address(offsets), p[TAPS], p[DEPTH], b, tile, p[PLANE_BYTES]),
                    )
                # Rows of the tile that lie between the image rows are dropped.
                done = 0
                while done < rows:
                    cell = line * pitch + f + done
                    image_row = cell // pitch
                    column = cell - image_row * pitch
                    run = min(rows - done, pitch - column)
                    count = min(run, width - column)
                    if count > 0:
                        pixel = first_pixel + image_row * width + column
                        place = 4 * (pixel * p[OUTPUTS] + first_column)
                        to = address(y) + place
                        other = address(residual) + place if has_residual else 0
                        sums = tile + 4 * done * columns
                        if code:
                            # Residuals lie as y does; so the tile is finished row by row in place.
                            for r in range(count):
                                shift = 4 * r * columns
                                beside = other + 4 * r * p[OUTPUTS] if has_residual else 0
                                call_epilogue(
                                    kernels[EPILOGUE],
                                    (
                                        sums + shift,
                                        1,
                                        exist,
                                        offset,
                                        beside,
                                        sums + shift,
                                        0,
                                        lowest,
                                        highest,
                                    ),
                                )
                            begin = (planes + 4 * done * columns) // 4
                            piece = floats[begin : begin + count * columns]
                            activate(piece, code, act_alpha, act_beta)
                            call_epilogue(
                                kernels[EPILOGUE],
                                (
                                    sums,
                                    count,
                                    exist,
                                    address(zeros),
                                    0,
                                    to,
                                    4 * p[OUTPUTS],
                                    lowest,
                                    highest,
                                ),
                            )
                        else:
                            call_epilogue(
                                kernels[EPILOGUE],
                                (
                                    sums,
                                    count,
                                    exist,
                                    offset,
                                    other,
                                    to,
                                    4 * p[OUTPUTS],
                                    bottom,
                                    top,
                                ),
                            )
                    done += run


@jit
def _half(bits: int) -> Any:
    return float_bits(np.int64(bits) << 16)


@jit
def _exact_tile(
    at: int, w: Array, number: int, memory: Array, offsets: Array, p: Array, rows: int
) -> None:
    """A tile whose input is infinite, NaN, or nearly so: whole numbers are added up one by one.

    Infinity minus infinity, which would be its lower half, is NaN; so is infinity times zero.
    """
    split = p[ARITHMETIC] == _SPLIT
    plane, columns = p[PLANE_BYTES] // 2, p[TILE_COLUMNS]
    shorts = memory[: memory.size // 2 * 2].view(np.uint16)
    floats = memory[: memory.size // 4 * 4].view(np.float32)
    tile = p[PLANE_BYTES] * (2 if split else 1) // 4
    steps = p[TAPS] * p[DEPTH]
    half = 16 * 16 * 2
    parts = 4 if split else 2
    for r in range(rows):
        for c in range(columns):
            total = np.float32(0)
            for step in range(steps):
                tap = step // p[DEPTH]
                inside = (step - tap * p[DEPTH]) * STEP
                place = (at + r * p[ROW] + offsets[tap]) // 2 + inside
                block = (number * steps + step) * parts * half + c // 16 * half + c % 16 * 2
                for k in range(min(STEP, p[RUN] - inside)):
                    value = _half(shorts[place + k])
                    index = block + k // 2 * 32 + k % 2
                    weight = _half(w[index])
                    if split:
                        weight += _half(w[index + 2 * half])
                        if (np.int64(shorts[place + k]) & 0x7F80) != 0x7F80:
                            value += _half(shorts[plane + place + k])
                    total += value * weight
            floats[tile + r * columns + c] = total
