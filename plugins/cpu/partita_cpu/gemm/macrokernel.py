"""The loop over tiles: what every matrix product and convolution with packed weights runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.input_panel import Scaling, lay_columns, lay_halo
from partita_cpu.gemm.nonfinite import LARGEST, whole_term
from partita_cpu.gemm.tile_fields import (
    ARITHMETIC,
    BLOCK_BYTES,
    BLOCKS,
    BY_COLUMNS,
    CELL,
    CHUNK,
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
    STEP_BYTES,
    STRIDE_DOWN,
    TAP_BYTES,
    TAPS,
    THREAD_BYTES,
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    UNITS,
    X_BYTES,
    X_FIRST,
    Y_BYTES,
    Y_FIRST,
    Y_PITCH,
    ZERO_BYTES,
)
from partita_cpu.gemm.tile_kernels import (
    CONFIG,
    CONFIGURE,
    EPILOGUE,
    EPILOGUE_F32,
    RELEASE,
    ROUND,
    Arithmetic,
)
from partita_cpu.jit.intrinsics.address_array import floats_at, integers_at, shorts_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_epilogue,
    call_plain,
    call_round,
    call_tile,
)
from partita_cpu.jit.kernel import jit
from partita_cpu.scalar.activations import activate_floats

_DIRECT = 0
_HALO = 1
_COLUMNS = 2
_SPLIT = int(Arithmetic.BF16X3)  # this and those beyond it have several planes


@jit
def multiply_tiles(
    x: Array,
    w: Array,
    bias: Array,
    residual: Array,
    y: Array,
    factor: Array,
    shift: Array,
    scratch: Array,
    offsets: Array,
    kernels: Array,
    p: Array,
    lowest_in: float,
    highest_in: float,
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
    """``y = activation(min(max(conv(x, w) + bias + residual, low), high))``, channels last.

    Tiles are finished where they are computed, unless the activation needs more than bounds and a
    gate, or rows of a tile lie between image rows.

    Args:
        x: Input pixels, flat; bfloat16 as uint16.
        w: Packed weights, as uint16.
        bias: Packed bias.
        residual: Like y; not read unless has_residual.
        y: Output pixels, flat; bfloat16 as uint16.
        factor: What each input channel is multiplied by first, if the plan says so.
        shift: What is added then.
        scratch: Bytes; `Plan.thread_bytes` for each thread.
        offsets: `Plan.offsets`.
        kernels: `table.tile_kernels`.
        p: `Plan.table`.
        lowest_in: Lower bound of what was multiplied and shifted.
        highest_in: Upper bound of it.
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
    if kernels[CONFIGURE]:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    bounds_in = np.float32(lowest_in), np.float32(highest_in)
    scaling = (address(factor), address(shift), bounds_in[0], bounds_in[1])
    while unit < end:
        stop = min(unit + p[PANEL_UNITS], end)
        if p[SOURCE] == _HALO:
            stop = min(stop, (unit // p[OUT_HEIGHT] + 1) * p[OUT_HEIGHT])
        for group in range(first_block // blocks, (last_block - 1) // blocks + 1):
            first = max(first_block - group * blocks, 0)
            last = min(last_block - group * blocks, blocks)
            a, largest = _lay(address(x), address(memory), kernels, p, scaling, group, unit, stop)
            multiply_panel(
                a,
                largest,
                address(w),
                address(bias),
                address(residual),
                address(y),
                address(memory),
                address(offsets),
                kernels,
                p,
                has_residual,
                low,
                high,
                gate,
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
    if kernels[CONFIGURE]:
        call_plain(kernels[RELEASE], (0,))


@jit(inline=True)
def _lay(
    x: int,
    panel: int,
    kernels: Array,
    p: Array,
    scaling: Scaling,
    group: int,
    unit: int,
    stop: int,
) -> Any:
    """Where tiles find their input, laid out if need be, and its largest absolute value if so."""
    if p[SOURCE] == _DIRECT:
        first = p[X_FIRST] + group * p[GROUP_CHANNELS]
        return x + unit * p[ROW] + p[X_BYTES] * first, 0
    if p[SOURCE] == _HALO:
        largest = lay_halo(x, panel, kernels, p, scaling, group, unit, stop)
    else:
        largest = lay_columns(x, panel, kernels, p, scaling, group, unit, stop)
    if kernels[ROUND]:
        call_round(kernels[ROUND], (panel, p[PLANE_BYTES] // 4))
    return panel, largest


_PANEL = (*["int"] * 8, "<i8 1", "<i8 1", "int", *["float"] * 2, *["int"] * 2)
"""Kinds of the first arguments of `multiply_panel`."""


@jit(apart=(*_PANEL, "float", "float", *["int"] * 5))
def multiply_panel(
    a: int,
    largest: int,
    w: int,
    bias: int,
    residual: int,
    y: int,
    memory: int,
    offsets: int,
    kernels: Array,
    p: Array,
    has_residual: int,
    low: float,
    high: float,
    gate: int,
    code: int,
    alpha: float,
    beta: float,
    group: int,
    first_block: int,
    last_block: int,
    unit: int,
    stop: int,
) -> None:
    """Some rows of the input times some columns of one group.

    Args:
        a: Address of the first row that tiles read.
        largest: The largest absolute value among what was laid out there, as bits.
        w: From here on as in `multiply_tiles`; addresses of what are arrays there.
        bias: .
        residual: .
        y: .
        memory: Address of this thread's scratch memory.
        offsets: .
        kernels: .
        p: .
        has_residual: .
        low: .
        high: .
        gate: .
        code: .
        alpha: .
        beta: .
        group: The group.
        first_block: First tile across, of the group.
        last_block: Behind the last one.
        unit: First row of the result.
        stop: Behind the last one.
    """
    arithmetic, source, row = p[ARITHMETIC], p[SOURCE], p[ROW]
    planes = p[PLANE_BYTES] * max(arithmetic, 1)
    # Infinity has no lower half, and may not meet the zeros that fill up a run.
    filled = p[RUN] != p[DEPTH] * p[STEP_BYTES] // 2
    exact = largest >= LARGEST and (arithmetic >= _SPLIT or filled)
    tile = memory + planes
    zeros = tile + TILE_BYTES
    row_of_zeros = floats_at(zeros, p[TILE_COLUMNS])
    for i in range(row_of_zeros.size):
        row_of_zeros[i] = np.float32(0)
    partials = zeros + ZERO_BYTES
    columns, width, outputs = p[TILE_COLUMNS], p[OUT_WIDTH], p[Y_BYTES] * p[Y_PITCH]
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
    act_alpha, act_beta = np.float32(alpha), np.float32(beta)
    parts = 2 if kernels[CONFIGURE] else 4  # in which tiles ask for what is needed next of b
    apart = p[PLANE_BYTES] if arithmetic >= _SPLIT else p[STEP_BYTES]
    whole_tiles = arithmetic and source == _DIRECT
    for block in range(first_block, last_block):
        number = group * p[BLOCKS] + block
        weights = w + number * p[BLOCK_BYTES]
        exist = min(columns, p[GROUP_OUTPUTS] - block * columns)
        first_column = p[Y_FIRST] + group * p[GROUP_OUTPUTS] + block * columns
        offset = bias + 4 * number * columns
        for first_tap in range(0, p[TAPS], p[CHUNK]):
            taps = min(p[CHUNK], p[TAPS] - first_tap)
            ends = first_tap + taps == p[TAPS]
            places = offsets + 8 * first_tap
            b = weights + first_tap * p[TAP_BYTES]
            for n in range(lines * tiles):
                line = n // tiles
                t = n - line * tiles
                if p[EVEN]:
                    f = length * t // tiles
                    rows = length * (t + 1) // tiles - f
                else:
                    f = t * most
                    rows = min(most, length - f)
                    if whole_tiles and rows < most and (rows > 16 or most == 16):
                        # Tiles are read as a whole: the last one begins before the one ends.
                        f = max(length - most, -unit)
                        rows = length - f
                    elif whole_tiles and rows < 16:
                        f = max(length - 16, -unit)
                        rows = length - f
                at = a + line * line_bytes + f * row
                sums = (at, row, places, taps, p[DEPTH], b, apart, rows)
                ahead = b
                if n < parts and not (ends and block == last_block - 1):
                    ahead += taps * p[TAP_BYTES] + n * (taps * p[TAP_BYTES] // parts)
                partial = partials + n * TILE_BYTES
                start = partial if first_tap else 0
                if not ends:
                    if not exact:
                        end = (partial, 0, 0, 0, 0, 0, lowest, highest, 0)
                        call_tile(kernels[rows], (*sums, start, ahead, *end))
                    continue
                image_row, column = line, f
                if source == _HALO and p[FLAT]:
                    image_row = f // pitch
                    column = f - image_row * pitch
                if column + rows <= width and not exact:
                    place = (first_pixel + image_row * width + column) * outputs
                    place += p[Y_BYTES] * first_column
                    to = y + place
                    other = residual + place if has_residual else 0
                    if code == 0:
                        end = (tile, offset, other, to, outputs, exist, bottom, top, gate)
                        call_tile(kernels[rows], (*sums, start, ahead, *end))
                        continue
                if exact:
                    _exact_tile(at, w, number, tile, offsets, p, rows)
                else:
                    end = (tile, 0, 0, 0, 0, 0, lowest, highest, 0)
                    call_tile(kernels[rows], (*sums, start, ahead, *end))
                # Rows of the tile that lie between the image rows are dropped.
                done = 0
                while done < rows:
                    run = min(rows - done, pitch - column)
                    count = min(run, width - column)
                    if count > 0:
                        place = (first_pixel + image_row * width + column) * outputs
                        place += p[Y_BYTES] * first_column
                        to = y + place
                        other = residual + place if has_residual else 0
                        piece = tile + 4 * done * columns
                        if code == 0:
                            rest = (offset, other, to, outputs, exist, bottom, top, gate)
                            call_epilogue(kernels[EPILOGUE], (count, piece, *rest))
                        else:
                            # Residuals lie as y does, so they are added row by row.
                            together = 1 if has_residual else count
                            for r in range(0, count, together):
                                at = piece + 4 * r * columns
                                beside = other + r * outputs if has_residual else 0
                                rest = (offset, beside, at, 4 * columns, exist, lowest, highest, 0)
                                call_epilogue(kernels[EPILOGUE_F32], (together, at, *rest))
                            numbers = count * columns
                            activate_floats(piece, numbers, code, act_alpha, act_beta)
                            rest = (zeros, 0, to, outputs, exist, lowest, highest, 0)
                            call_epilogue(kernels[EPILOGUE], (count, piece, *rest))
                    done += run
                    column += run
                    if column == pitch:
                        column = 0
                        image_row += 1


@jit
def _exact_tile(a: int, w: int, number: int, tile: int, offsets: int, p: Array, rows: int) -> None:
    """A tile whose input is infinite, NaN, or nearly so; see `exact`."""
    planes = max(p[ARITHMETIC], 1)
    plane, columns = p[PLANE_BYTES] // 2, p[TILE_COLUMNS]
    steps = p[TAPS] * p[DEPTH]
    places = integers_at(offsets, p[TAPS])
    sums = floats_at(tile, rows * columns)
    step_size = p[STEP_BYTES] // 2
    weights = shorts_at(w, (number + 1) * steps * planes * columns * step_size)
    half = 16 * step_size
    for r in range(rows):
        for c in range(columns):
            total = np.float32(0)
            for step in range(steps):
                tap = step // p[DEPTH]
                inside = (step - tap * p[DEPTH]) * step_size
                values = shorts_at(a + r * p[ROW] + places[tap] + 2 * inside, plane * planes)
                block = (number * steps + step) * planes * 2 * half + c // 16 * half + c % 16 * 2
                for k in range(min(step_size, p[RUN] - inside)):
                    index = block + k // 2 * 32 + k % 2
                    total += whole_term(values, k, plane, weights, index, planes)
            sums[r * columns + c] = total
