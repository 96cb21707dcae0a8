"""8-bit convolutions that read overlapping windows in lines of the image, without im2col.

Every thread copies the lines that it needs, with padding, to memory of its own; images without
padding are read in place. The windows of neighbouring pixels then begin at equal distances, and a
row of the kernel is one run of terms. Vector kernels take a few pixels of a line at a time. AMX
tiles take 32, and what they compute between the end of a line and the beginning of the next one is
dropped.

Of a convolution in groups, one group's channels are copied at a time; by vector kernels only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.windows import Window
from partita.lowering.shapes.symbolic_size import integer
from partita_cpu.gemm.precision_policy import PrecisionPolicy, native_policy
from partita_cpu.gemm.shares import own_share
from partita_cpu.gemm.tile_kernels import (
    CONFIG,
    CONFIGURE,
    FLOATS,
    LEVELS,
    PREPARE,
    RELEASE,
    byte_exec_type,
)
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_bytes,
    call_dots,
    call_finish_bytes,
    call_plain,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.int8.byte_tiles import CHUNK, TILE, TOGETHER, Kind, least_of
from partita_cpu.kernels.int8.byte_tiles import SHIFT as UNSIGNED_ZERO
from partita_cpu.kernels.int8.line_table import (
    ACROSS,
    BAND,
    BLOCK,
    CACHE_LINE,
    CHANNELS,
    COLUMNS,
    DILATION,
    DOWN,
    GROUP_CHANNELS,
    GROUP_OUTPUTS,
    HEIGHT,
    HIGH,
    KIND,
    LOW,
    OUT_HEIGHT,
    OUT_WIDTH,
    PITCH,
    SHARES,
    SHIFT,
    STRIDE_ACROSS,
    STRIDE_DOWN,
    THREAD_BYTES,
    WIDTH,
    ChannelGroups,
    lay_lines,
    line_table,
)
from partita_cpu.kernels.int8.product import (
    ByteOperands,
    Result,
    block_steps,
    factors_of_columns,
    kernels_for,
    packed_weights,
)
from partita_cpu.kernels.int8.register_levels import (
    dots_of,
    fetched_ahead,
    multiply_to_levels,
    prepare_end,
)
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD
from partita_cpu.llvm.tiles.amx_int8 import STEP
from partita_cpu.llvm.tiles.dot_int8 import most_rows

_FEW_PIXELS = 64
"""Images of so few are quicker gathered: a fifth of what tiles compute would be dropped, and
kernels in vectors would take three rows at a time."""

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
    """The convolution, finished as floats or levels; channels last.

    Args:
        x: Input (N, H, W, channels), flat; int8 or uint8.
        product: Weights, and what sums become.
        y: Output, flat.
        sums: int32; `TOGETHER` tiles for each thread.
        memory: Bytes, as many for each thread as the table says.
        kernels: `tile_kernels.byte_kernels`.
        p: The table.
        tid: This thread.
        nt: All threads.
    """
    threads = min(nt, sums.size // (TOGETHER * TILE))
    if tid >= threads:
        return
    lines = x.size // (p[HEIGHT] * p[WIDTH] * p[CHANNELS]) * p[OUT_HEIGHT]
    of_group = (p[GROUP_OUTPUTS] + PANEL - 1) // PANEL
    panels = p[COLUMNS] // p[GROUP_OUTPUTS] * of_group
    line, end, first_panel, last_panel = own_share(p[SHARES], tid, threads, lines, panels)
    if first_panel == last_panel or line == end:
        return
    start = tid * p[THREAD_BYTES]
    start += -(address(memory) + start) % CACHE_LINE
    band = memory[start : (tid + 1) * p[THREAD_BYTES]]
    tiles = sums[tid * TOGETHER * TILE : (tid + 1) * TOGETHER * TILE]
    on_tiles = kernels[CONFIGURE]
    if on_tiles:
        call_plain(on_tiles, (kernels[CONFIG],))
    while line < end:
        image = line // p[OUT_HEIGHT]
        first = line - image * p[OUT_HEIGHT]
        count = min(min(end - line, p[OUT_HEIGHT] - first), p[BAND])
        source, laid = address(band), -1
        if not p[THREAD_BYTES]:
            source = address(x) + (image * p[HEIGHT] + first * p[STRIDE_DOWN]) * p[PITCH]
        for panel in range(first_panel, last_panel):
            if p[THREAD_BYTES] and panel // of_group != laid:
                laid = panel // of_group
                blank = np.uint8(np.int32(product.zero[0]) + p[SHIFT])
                lay_lines(x, blank, band, p, image, first, count, laid)
            if on_tiles:
                _multiply_lines(source, product, y, tiles, kernels, p, panel, line, count)
            else:
                following = min(panel + 1, last_panel - 1)
                _dot_lines(source, product, y, tiles, kernels, p, panel, following, line, count)
        line += count
    if on_tiles:
        call_plain(kernels[RELEASE], (0,))


@loop(inline=True)
def _columns_of(p: Any, panel: int) -> Any:
    """The first column of a panel, and how many exist."""
    of_group = (p[GROUP_OUTPUTS] + PANEL - 1) // PANEL
    group = panel // of_group
    within = (panel - group * of_group) * PANEL
    return group * p[GROUP_OUTPUTS] + within, min(PANEL, p[GROUP_OUTPUTS] - within)


@loop(inline=True)
def _finish_pixels(
    kernel: int, tile: int, count: int, product: LineProduct, y: Any, p: Any, pixel: int, panel: int
) -> None:
    """Finishes the sums of some neighbouring pixels and one panel.

    Args:
        kernel: Address of the kernel that finishes sums.
        tile: Address of the sums.
        count: Pixels.
        product: What sums become.
        y: Output, flat.
        p: The table.
        pixel: The first pixel.
        panel: The panel.
    """
    column, exist = _columns_of(p, panel)
    new_zero = np.int64(product.level[0])
    call_finish_bytes(
        kernel,
        (
            tile,
            count,
            exist,
            address(product.totals) + 4 * column,
            np.int64(product.zero[0]) + p[SHIFT],
            address(product.bias) + 4 * column,
            address(product.factors) + 4 * column,
            product.scale[0],
            address(y) + y.itemsize * (pixel * p[COLUMNS] + column),
            y.itemsize * p[COLUMNS],
            least_of(p[KIND], p[LOW], new_zero),
            np.float32(p[HIGH] - new_zero),
            new_zero,
        ),
    )


@loop
def _dot_lines(
    source: int,
    product: LineProduct,
    y: Any,
    tile: Any,
    kernels: Any,
    p: Any,
    panel: int,
    following: int,
    line: int,
    count: int,
) -> None:
    """Some output lines of one panel by kernels in vectors; the following panel is fetched.

    Args:
        source: Address of the first tap of the first line.
        product: Weights, and what sums become.
        y: Output, flat.
        tile: Memory for sums.
        kernels: `tile_kernels.byte_kernels`.
        p: The table.
        panel: The panel.
        following: The one that comes next.
        line: The first output line.
        count: How many.
    """
    width, pitch = p[OUT_WIDTH], p[PITCH]
    column, exist = _columns_of(p, panel)
    dots, most_place = dots_of(exist)
    most = kernels[most_place]
    step, panels = p[STRIDE_ACROSS] * p[GROUP_CHANNELS], address(product.panels)
    quads = (p[ACROSS] * p[GROUP_CHANNELS] + QUAD - 1) // QUAD
    size = p[DOWN] * quads * QUAD * PANEL
    weights, ahead = panels + panel * size, panels + following * size
    end_kernel = kernels[LEVELS if p[KIND] == _LEVELS else FLOATS]
    fetched = 0
    if kernels[PREPARE]:
        end, levels = address(tile), (p[LOW], np.int64(product.level[0]))
        numbers = address(product.totals), address(product.bias), address(product.factors)
        zero = np.int64(product.zero[0]) + p[SHIFT]
        prepare_end(kernels, end, exist, column, numbers, zero, product.scale[0], levels)
        for row in range(count):
            line_at = source + row * p[STRIDE_DOWN] * pitch
            rows = line_at, step, p[DOWN], p[DILATION] * pitch, 0, 0
            to = address(y) + (line + row) * width * p[COLUMNS] + column, p[COLUMNS]
            of_panel = weights, ahead, quads, size
            fetched = multiply_to_levels(kernels, width, exist, rows, of_panel, fetched, end, to)
        return
    for row in range(count):
        for start in range(0, width, CHUNK):
            pixels = min(CHUNK, width - start)
            pieces = -(-pixels // most)
            for piece in range(pieces):
                done = pixels * piece // pieces
                rows = pixels * (piece + 1) // pieces - done
                a = source + row * p[STRIDE_DOWN] * pitch + (start + done) * step
                runs = p[DOWN], p[DILATION] * pitch, weights, quads
                to = address(tile) + 4 * done * PANEL, fetched_ahead(weights, ahead, fetched, size)
                call_dots(kernels[dots + rows], (a, step, *runs, *to))
                fetched += 1
            pixel = (line + row) * width + start
            _finish_pixels(end_kernel, address(tile), pixels, product, y, p, pixel, panel)


@loop
def _multiply_lines(
    source: int,
    product: LineProduct,
    y: Any,
    tiles: Any,
    kernels: Any,
    p: Any,
    panel: int,
    line: int,
    count: int,
) -> None:
    """Some output lines of one panel by tiles of AMX.

    Args:
        source: Address of the first tap of the first line.
        product: Weights, and what sums become.
        y: Output, flat.
        tiles: Memory for sums.
        kernels: `tile_kernels.byte_kernels`.
        p: The table.
        panel: The panel.
        line: The first output line.
        count: How many.
    """
    channels, width = p[CHANNELS], p[OUT_WIDTH]
    pitch = width + p[ACROSS] - 1
    length = (count - 1) * pitch + width
    run = p[ACROSS] * channels // STEP
    parts = -(-run // p[BLOCK])
    blocks = p[DOWN] * parts
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
            a = source + (first + down * pitch) * channels + done * STEP
            place = ((panel * p[DOWN] + down) * run + done) * STEP * PANEL
            weights = address(product.panels) + place
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
                    sums = tile + 4 * over * PANEL
                    _finish_pixels(end_kernel, sums, exist, product, y, p, pixel, panel)
                over += min(rows - over, pitch - of_line)


def has_runs(window: Window) -> bool:
    """Whether a row of the kernel is one run of pixels, and windows reach all of the image."""
    inside = min(*window.begin, *window.end) >= 0
    return window.is_flat and inside and (window.kernel[2] == 1 or window.dilation[2] == 1)


def takes_lines(window: Window, channels: int, policy: PrecisionPolicy) -> bool:
    """Whether windows are runs at equal distances, long enough for the kernels."""
    across = window.kernel[2]
    if not has_runs(window) or window.pixels <= _FEW_PIXELS:
        return False
    if not policy.level.tiles:
        return 2 * window.out[2] >= most_rows(policy.level)
    moves = {*window.stride, *window.dilation}
    return across > 1 and moves == {1} and across * channels % STEP == 0


def runs_first(weights: Array) -> Array:
    """Weights (outputs, channels, ..., across) as a matrix of terms (down, across and channels).

    Each row of the kernel is filled up to whole quads, with what is 0 as int8.
    """
    outputs, channels, *_, across = weights.shape
    down = math.prod(weights.shape[2:-1])
    runs = weights.reshape(outputs, channels, down, across).transpose(2, 3, 1, 0)
    length = across * channels
    nothing = UNSIGNED_ZERO if weights.dtype == np.uint8 else 0
    matrix = np.full((down, -(-length // QUAD) * QUAD, outputs), nothing, weights.dtype)
    matrix[:, :length] = runs.reshape(down, length, outputs)
    return matrix.reshape(-1, outputs)


def emit_lines(
    b: Builder, window: Window, operands: ByteOperands, result: Result | None
) -> Operand | None:
    """Records the convolution; ``None`` if kernels cannot read the image's lines as they lie.

    Args:
        b: Records it.
        window: The window, in two dimensions.
        operands: Images (n, height, width, channels) and weights (outputs, channels, ...).
        result: What sums become; ``None`` for int32.
    """
    x, w, policy = operands.x, operands.w, native_policy(b.options)
    if policy is None or not takes_lines(window, x.shape[-1], policy):
        return None
    if result is None or result.kind is Kind.SUMS or operands.needs_row_totals:
        return None
    result = replace(result, factors=factors_of_columns(b, result, w.shape[0]))
    zero = operands.x_zero
    if result.factors.size != w.shape[0] or (zero is not None and zero.size != 1):
        return None
    groups = ChannelGroups(1, x.shape[-1], w.shape[0])
    width = window.kernel[1] * -(-window.kernel[2] * x.shape[-1] // QUAD) * QUAD
    packed = packed_weights(b, w, runs_first, w.shape[0], width)
    return emit_line_product(b, policy, window, operands, packed, result, groups)


def emit_line_product(
    b: Builder,
    policy: PrecisionPolicy,
    window: Window,
    operands: ByteOperands,
    packed: tuple[Operand, Operand],
    result: Result,
    groups: ChannelGroups,
) -> Operand:
    """Records the convolution of lines with packed weights; for native levels.

    Args:
        b: Records it.
        policy: What may be used.
        window: One that `has_runs`.
        operands: Images (n, height, width, channels), their zero point, and weights.
        packed: Panels, group after group, and sums of the columns of all.
        result: What sums become.
        groups: How channels are divided.

    Returns:
        The result (n, height, width, columns).
    """
    x, columns, level, threads = operands.x, operands.w.shape[0], policy.level, policy.threads
    y = b.empty((x.shape[0], *window.out_shape, columns), result.dtype)
    factors, zero = factors_of_columns(b, result, columns), operands.zero_level(b)
    levels = result.dtype if result.kind is Kind.LEVELS else None
    table = line_table(window, x.shape, groups, operands.shift, levels, policy, block_steps(b))
    if result.positive:
        table[LOW] = 0
    kernels = kernels_for(level, STEP, result)
    if groups.number > 1:
        kernels = kernels.copy()
        kernels[CONFIGURE] = 0  # tiles of AMX are too deep for most groups
    b.call(
        convolve_lines,
        b.flat(x),
        LineProduct(zero, *packed, *map(b.flat, (result.scale, factors, result.bias, result.zero))),
        b.flat(y),
        b.empty((threads * TOGETHER * TILE,), np.int32),
        b.empty((threads * integer(table[THREAD_BYTES]),), np.uint8),
        b.constant(kernels),
        b.constant(table),
        work=y.size * window.taps * groups.channels // (16 if kernels[CONFIGURE] else 4),
        exec_type=byte_exec_type(level),
    )
    return y
