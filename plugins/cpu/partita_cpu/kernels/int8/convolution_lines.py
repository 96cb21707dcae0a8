"""Convolutions of bytes whose windows overlap: tiles of AMX read the lines of an image as they lie.

Every thread lays out the lines that it needs, with padding, in memory of its own. The windows of
neighbouring pixels then begin one pixel after another, and a row of the kernel is one run of terms.
What tiles compute between the end of a line and the beginning of the next one is dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Builder, Operand
from partita.lowering.geometry.windows import Window
from partita_cpu.gemm.precision_policy import Choice
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, FLOATS, LEVELS, RELEASE, byte_kernels
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_bytes,
    call_finish_bytes,
    call_plain,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.int8.product import CHUNK, TILE, TOGETHER, Kind, Result, block_steps
from partita_cpu.kernels.linalg.register_tiles import PANEL
from partita_cpu.llvm.tiles.amx_int8 import STEP

_BAND_SHARE = 1 / 16
"""Of the second-level cache, for lines that a thread lays out together: they stay there with the
weights, which are read again for each such band."""
_LINE = 64
_FEW_PIXELS = 64
"""Images of so few are quicker gathered: a fifth of what is computed would be dropped."""

(
    HEIGHT,
    WIDTH,
    CHANNELS,
    DOWN,
    ACROSS,
    TOP,
    LEFT,
    OUT_HEIGHT,
    OUT_WIDTH,
    COLUMNS,
    SHIFT,
    KIND,
    LOW,
    HIGH,
    BAND,
    BY_COLUMNS,
    THREAD_BYTES,
    BLOCK,
) = range(18)
"""What the table of `convolve_lines` holds: sizes of input, window, padding and output; columns of
the weights; what makes the input uint8; what sums become, and between which levels; output lines
that are computed together, whether threads share columns and not lines, and their memory; steps
whose weights stay in the first-level cache."""

_LEVELS = int(Kind.LEVELS)


class LineProduct(NamedTuple):
    """What lines are multiplied by, and what sums become.

    Attributes:
        zero: The level of x that is 0.
        panels: Weights by panels, int8; terms are (down, across, channels).
        totals: Sum of each of their columns.
        scale: See `product.Result`; so are the next three.
        factors: One per column.
        bias: One per column.
        level: One.
    """

    zero: KernelArray
    panels: KernelArray
    totals: KernelArray
    scale: KernelArray
    factors: KernelArray
    bias: KernelArray
    level: KernelArray


@loop
def convolve_lines(
    x: Any,
    product: LineProduct,
    y: Any,
    sums: Any,
    memory: Any,
    kernels: Any,
    p: Any,
    tid: int,
    nt: int,
) -> None:
    """The convolution with stride 1, finished as floats or levels; channels last.

    Args:
        x: Input (N, H, W, channels), flat; int8 or uint8.
        product: Weights, and what sums become.
        y: Output, flat.
        sums: int32; `TOGETHER` tiles for each thread.
        memory: Bytes, as many for each thread as the table says.
        kernels: `table.byte_kernels`.
        p: The table.
        tid: This thread.
        nt: All threads.
    """
    threads = min(nt, sums.size // (TOGETHER * TILE))
    if tid >= threads:
        return
    images = x.size // (p[HEIGHT] * p[WIDTH] * p[CHANNELS])
    first_panel, last_panel = 0, (p[COLUMNS] + PANEL - 1) // PANEL
    line, end = 0, images * p[OUT_HEIGHT]
    if p[BY_COLUMNS]:
        first_panel, last_panel = last_panel * tid // threads, last_panel * (tid + 1) // threads
    else:
        line, end = end * tid // threads, end * (tid + 1) // threads
    if first_panel == last_panel or line == end:
        return
    start = tid * p[THREAD_BYTES]
    start += -(address(memory) + start) % _LINE
    band = memory[start : (tid + 1) * p[THREAD_BYTES]]
    tiles = sums[tid * TOGETHER * TILE : (tid + 1) * TOGETHER * TILE]
    call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    while line < end:
        image = line // p[OUT_HEIGHT]
        first = line - image * p[OUT_HEIGHT]
        count = min(min(end - line, p[OUT_HEIGHT] - first), p[BAND])
        _lay_lines(x, np.uint8(np.int32(product.zero[0]) + p[SHIFT]), band, p, image, first, count)
        for panel in range(first_panel, last_panel):
            _multiply_lines(band, product, y, tiles, kernels, p, panel, line, count)
        line += count
    call_plain(kernels[RELEASE], (0,))


@loop
def _lay_lines(x: Any, blank: Any, band: Any, p: Any, image: int, first: int, count: int) -> None:
    """The lines under some output lines, as uint8, with padding."""
    channels, flipped = p[CHANNELS], np.uint8(p[SHIFT])  # 128 turns the highest bit over
    pitch = (p[OUT_WIDTH] + p[ACROSS] - 1) * channels
    before, run = p[LEFT] * channels, p[WIDTH] * channels
    for i in range(count + p[DOWN] - 1):
        target = band[i * pitch : (i + 1) * pitch]
        at = first + i - p[TOP]
        if at < 0 or at >= p[HEIGHT]:
            target[:] = blank
            continue
        start = (image * p[HEIGHT] + at) * run
        source, inside = x[start : start + run], target[before : before + run]
        target[:before] = blank
        for k in range(inside.size):
            inside[k] = np.uint8(source[k]) ^ flipped
        target[before + run :] = blank


@loop
def _multiply_lines(
    band: Any,
    product: LineProduct,
    y: Any,
    tiles: Any,
    kernels: Any,
    p: Any,
    panel: int,
    line: int,
    count: int,
) -> None:
    """Some output lines of one panel."""
    zero, panels, totals, scale, factors, bias, level = product
    channels, columns, width = p[CHANNELS], p[COLUMNS], p[OUT_WIDTH]
    pitch = width + p[ACROSS] - 1
    length = (count - 1) * pitch + width
    run = p[ACROSS] * channels // STEP
    parts = -(-run // p[BLOCK])
    blocks = p[DOWN] * parts
    column, new_zero = panel * PANEL, np.int64(level[0])
    bounds = np.float32(p[LOW] - new_zero), np.float32(p[HIGH] - new_zero)
    end_kernel = kernels[LEVELS if p[KIND] == _LEVELS else FLOATS]
    for start in range(0, length, TOGETHER * CHUNK):
        together = min(TOGETHER, -(-(length - start) // CHUNK))
        for turn in range(blocks * together):
            block, number = turn // together, turn % together
            first = start + number * CHUNK
            rows = min(CHUNK, length - first)
            down, part = block // parts, block % parts
            done = run * part // parts
            steps = run * (part + 1) // parts - done
            a = address(band) + (first + down * pitch) * channels + done * STEP
            place = ((panel * p[DOWN] + down) * run + done) * STEP * PANEL
            weights = address(panels) + place
            tile = address(tiles) + 4 * number * TILE
            whole = 1 if rows * 2 <= CHUNK else 2
            call_bytes(kernels[whole], (a, channels, weights, steps, STEP, tile, block))
            if block < blocks - 1:
                continue
            over = 0
            while over < rows:
                at = first + over
                of_line = at % pitch
                exist = min(rows - over, width - of_line)
                if exist > 0:
                    pixel = (line + at // pitch) * width + of_line
                    call_finish_bytes(
                        end_kernel,
                        (
                            tile + 4 * over * PANEL,
                            exist,
                            min(PANEL, columns - column),
                            address(totals) + 4 * column,
                            np.int64(zero[0]) + p[SHIFT],
                            address(bias) + 4 * column,
                            address(factors) + 4 * column,
                            scale[0],
                            address(y) + y.itemsize * (pixel * columns + column),
                            y.itemsize * columns,
                            bounds[0],
                            bounds[1],
                            new_zero,
                        ),
                    )
                over += min(rows - over, pitch - of_line)


def takes_lines(window: Window, channels: int) -> bool:
    """Whether windows overlap and their rows fill steps."""
    moves = (*window.stride, *window.dilation)
    inside = min(*window.begin, *window.end) >= 0
    whole = window.kernel[2] * channels % STEP == 0
    flat = window.is_flat and window.kernel[2] > 1 and window.pixels > _FEW_PIXELS
    return flat and set(moves) == {1} and inside and whole


def emit_lines(
    b: Builder,
    window: Window,
    x: Operand,
    zero: Operand,
    shift: int,
    packed: tuple[Operand, Operand],
    result: Result,
    factors: Operand,
    y: Operand,
    choice: Choice,
) -> None:
    """Records the convolution; weights have no zero points.

    Args:
        b: The builder.
        window: One that `takes_lines`.
        x: The input with channels last.
        zero: The level of x that is 0.
        shift: What makes the input uint8.
        packed: Weights by panels, and the sums of their columns.
        result: What sums become.
        factors: Its factors, one per column.
        y: The output.
        choice: What may be used: a level with tiles.
    """
    threads = choice.threads
    channels, columns = x.shape[-1], factors.size
    (_, down, across), (_, out_height, out_width) = window.kernel, window.out
    pitch = (out_width + across - 1) * channels
    band = min(max(choice.machine.l2_bytes(_BAND_SHARE) // pitch - down + 1, 1), out_height)
    pixels, terms = x.shape[0] * window.pixels, window.taps * channels
    by_lines = pixels * (terms + columns) > terms * columns
    by_lines = by_lines and x.shape[0] * out_height >= 2 * threads
    thread_bytes = (band + down - 1) * pitch + (CHUNK + across) * channels + _LINE
    limits = np.iinfo(result.dtype) if result.kind is Kind.LEVELS else np.iinfo(np.int32)
    sizes = (*window.size[1:], channels, down, across, *window.begin[1:], out_height, out_width)
    ends = (columns, shift, result.kind, limits.min, limits.max)
    table = np.array((*sizes, *ends, band, not by_lines, thread_bytes, block_steps(b)), np.int64)
    b.call(
        convolve_lines,
        b.flat(x),
        LineProduct(zero, *packed, *map(b.flat, (result.scale, factors, result.bias, result.zero))),
        b.flat(y),
        b.empty((threads * TOGETHER * TILE,), np.int32),
        b.empty((threads * thread_bytes,), np.uint8),
        b.constant(byte_kernels(choice.level, STEP)),
        b.constant(table),
        work=pixels * terms * columns // 16,
        exec_type="amx_int8",
    )
