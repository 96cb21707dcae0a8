"""Depthwise convolution and pooling of images with channels last, row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.product_records import Epilogue, InputScaling
from partita_cpu.jit.intrinsics.address_call import address, call_narrow, call_scale, call_window
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.nhwc.window_walk import pixels_at_once, taps_across, taps_down, window_geometry
from partita_cpu.scalar.activations import ActivationFields, activate_floats

CONVOLVE = 0
MAX = 1
MEAN = 2

FEW_ROWS = 4
"""Of a thread: threads share the pixels of fewer rows, as those of sound are."""


class ChannelSlice(NamedTuple):
    """Which channels of images are read and written.

    Attributes:
        number: How many.
        x_pitch: Elements from one input pixel to the next.
        x_first: The first channel that is read.
        y_pitch: Elements from one output pixel to the next.
        y_first: The channel that the first result is written to.
    """

    number: int
    x_pitch: int
    x_first: int
    y_pitch: int
    y_first: int


class SlidingWindow(NamedTuple):
    """What a window computes, and where it lies.

    Attributes:
        w: Weights (taps down, taps across, channels), flat; only for `CONVOLVE`.
        bias: One value per channel; only for `CONVOLVE`.
        kernels: `tile_kernels.window_kernels`.
        table: `Window.table`, of depth 1.
        counts_down: For `MEAN`, elements that the windows of an output row count downwards.
        counts_across: And across, for each output column.
        kind: `CONVOLVE`, `MAX` or `MEAN`.
    """

    w: KernelArray
    bias: KernelArray
    kernels: KernelArray
    table: KernelArray
    counts_down: KernelArray
    counts_across: KernelArray
    kind: int


@loop
def slide(
    x: Array,
    window: SlidingWindow,
    y: Array,
    channels: ChannelSlice,
    epilogue: Epilogue,
    tid: int,
    nt: int,
) -> None:
    """Every channel's window at every output pixel: weighted sum, maximum or mean.

    Args:
        x: Input (N, H, W, x_pitch), flat; bfloat16 as uint16, and then y as well.
        window: What is computed.
        y: Output, flat.
        channels: Which ones are read and written.
        epilogue: For `CONVOLVE`, without a residual; activations in float32 only.
        tid: This thread.
        nt: All threads; they share the output's rows, or pixels of few rows.
    """
    kind, kernels, over = window.kind, window.kernels, window_geometry(window.table)
    unit, tap_bytes = x.itemsize, 4 * channels.number
    pixel_bytes, y_bytes = unit * channels.x_pitch, unit * channels.y_pitch
    row_bytes = pixel_bytes * over.width
    source = address(x) + unit * channels.x_first
    target = address(y) + unit * channels.y_first
    factor, bound = np.float32(epilogue.low), np.float32(epilogue.high)
    rows = y.size // (over.columns * channels.y_pitch)
    together = over.columns if rows >= FEW_ROWS * nt else 1
    shares = rows * over.columns // together
    at, stop = shares * tid // nt * together, shares * (tid + 1) // nt * together
    while at < stop:
        row = at // over.columns
        first, last, line = taps_down(over, row)
        column = at - row * over.columns
        behind = min(over.columns, column + stop - at)
        to = target + at * y_bytes
        while column < behind:
            begin, end, pixel = taps_across(over, column)
            pixels = pixels_at_once(over, column)
            while column + pixels > behind:
                pixels //= 2
            if kind == MEAN:
                count = window.counts_down[row % over.rows] * window.counts_across[column]
                factor = np.float32(1) / np.float32(count)
            tap = first * over.across + begin
            call_window(
                kernels[pixels],
                (
                    source + line * row_bytes + pixel * pixel_bytes,
                    over.dilation_down * row_bytes,
                    over.dilation_across * pixel_bytes,
                    over.stride_across * pixel_bytes,
                    last - first if end > begin else 0,
                    end - begin,
                    address(window.w) + tap * tap_bytes,
                    over.across * tap_bytes,
                    channels.number,
                    address(window.bias),
                    target + (row * over.columns + column) * y_bytes,
                    y_bytes,
                    factor,
                    bound,
                    epilogue.gate,
                ),
            )
            column += pixels
        done = row * over.columns + behind - at
        if epilogue.code:
            _activate_row(to, done, y_bytes, channels, epilogue)
        at += done


@loop
def _activate_row(
    to: int, pixels: int, y_bytes: int, channels: ChannelSlice, epilogue: Epilogue
) -> None:
    """Applies the activation to an output row where it lies."""
    code, alpha, beta = epilogue.code, np.float32(epilogue.alpha), np.float32(epilogue.beta)
    if channels.y_pitch == channels.number:
        activate_floats(to, pixels * channels.number, code, alpha, beta)
        return
    for pixel in range(pixels):
        activate_floats(to + pixel * y_bytes, channels.number, code, alpha, beta)


@loop
def over_all_pixels(
    x: Array,
    y: Array,
    kernel: Array,
    channels: int,
    rows: int,
    pixels: int,
    first: int,
    factor: float,
    tid: int,
    nt: int,
) -> None:
    """Each channel's mean (or maximum) over whole images; threads share the channels.

    Args:
        x: Input (N, rows, pixels, at least channels), flat; float32, or bfloat16 as uint16.
        y: Output (N, channels), flat; float32.
        kernel: The window kernel for one pixel, for sums (or maxima).
        channels: Channels.
        rows: Parts of an image that are added up apart.
        pixels: Pixels of a row.
        first: The first channel that is read.
        factor: What sums are multiplied by.
        tid: This thread.
        nt: All threads.
    """
    images = y.size // channels
    pitch = x.size // (images * rows * pixels)
    pieces = -(-channels // 16)
    begin = pieces * tid // nt * 16
    end = min(pieces * (tid + 1) // nt * 16, channels)
    if begin >= end:
        return
    for image in range(images):
        source = address(x) + x.itemsize * (image * rows * pixels * pitch + first + begin)
        target = address(y) + 4 * (image * channels + begin)
        call_window(
            kernel[0],
            (
                source,
                x.itemsize * pitch * pixels,
                x.itemsize * pitch,
                0,
                rows,
                pixels,
                source,
                0,
                end - begin,
                source,
                target,
                0,
                np.float32(factor),
                np.float32(0),
                0,
            ),
        )


@loop
def swap_axes(x: Array, y: Array, rows: int, columns: int, pitch: int, tid: int, nt: int) -> None:
    """``y[n, j, i] = x[n, i, j]``, with zeros behind.

    Threads share blocks of columns, cut into bands of rows where blocks are few.

    Args:
        x: Input (N, rows, columns), flat.
        y: Output (N, columns, pitch), flat.
        rows: Rows of x.
        columns: Columns of x.
        pitch: Length of a row of y, at least `rows`.
        tid: This thread.
        nt: All threads.
    """
    block = 32
    pieces = -(-columns // block)
    images = x.size // (rows * columns)
    blocks = -(-rows // block)
    bands = 1 if images * pieces >= FEW_ROWS * nt else min(blocks, nt)
    count = images * pieces * bands
    for number in range(count * tid // nt, count * (tid + 1) // nt):
        piece = number // bands
        band = number - piece * bands
        image = piece // pieces
        first = (piece - image * pieces) * block
        last = min(first + block, columns)
        source, target = image * rows * columns, image * columns * pitch
        if rows == 3 and pitch == 4:
            # Pictures: loops of three would take most of the time.
            for j in range(first, last):
                to, at = target + 4 * j, source + j
                y[np.uint64(to)] = x[np.uint64(at)]
                y[np.uint64(to + 1)] = x[np.uint64(at + columns)]
                y[np.uint64(to + 2)] = x[np.uint64(at + 2 * columns)]
                y[np.uint64(to + 3)] = np.float32(0)
            continue
        last_top = blocks * (band + 1) // bands * block
        for top in range(blocks * band // bands * block, last_top, block):
            bottom = min(top + block, rows)
            for j in range(first, last):
                to, at = target + j * pitch, source + j
                for i in range(top, bottom):
                    y[np.uint64(to + i)] = x[np.uint64(at + i * columns)]
        for j in range(first, last if last_top >= rows else first):
            for i in range(rows, pitch):
                y[target + j * pitch + i] = np.float32(0)


@loop
def scale_and_shift(
    x: Array,
    scaling: InputScaling,
    y: Array,
    kernel: Array,
    channels: ChannelSlice,
    activation: ActivationFields,
    tid: int,
    nt: int,
) -> None:
    """``y = activation(min(max(x * factor + shift, low), high))`` per channel; channels last.

    Args:
        x: Input (pixels, at least channels), flat; bfloat16 as uint16, and then y as well.
        scaling: Factors, summands and bounds.
        y: Output (pixels, y_pitch), flat.
        kernel: The conversion that scales.
        channels: Which ones are read and written.
        activation: What bounds do not express; float32 only.
        tid: This thread.
        nt: All threads; they share the pixels.
    """
    factor, shift, y_pitch = address(scaling.factor), address(scaling.shift), channels.y_pitch
    pixels, count, code = y.size // y_pitch, channels.number, activation.code
    bottom, top = np.float32(scaling.low), np.float32(scaling.high)
    a, b = np.float32(activation.alpha), np.float32(activation.beta)
    for pixel in range(pixels * tid // nt, pixels * (tid + 1) // nt):
        source = address(x) + x.itemsize * (pixel * channels.x_pitch + channels.x_first)
        to = address(y) + y.itemsize * (pixel * y_pitch + channels.y_first)
        call_scale(kernel[0], (source, count, to, 0, count, factor, shift, bottom, top))
        if code:
            activate_floats(to, count, code, a, b)


@loop
def put_channels(
    x: Array,
    y: Array,
    kernel: Array,
    channels: int,
    x_first: int,
    y_first: int,
    y_pitch: int,
    tid: int,
    nt: int,
) -> None:
    """Copies some channels of each pixel to their place among those of y.

    Args:
        x: Input (pixels, at least channels), flat; of the same type as y.
        y: Output (pixels, y_pitch), flat.
        kernel: The copy.
        channels: How many.
        x_first: The first of them in x.
        y_first: The first of them in y.
        y_pitch: Elements from one output pixel to the next.
        tid: This thread.
        nt: All threads; they share the pixels.
    """
    pixels = y.size // y_pitch
    x_pitch = x.size // pixels
    for pixel in range(pixels * tid // nt, pixels * (tid + 1) // nt):
        source = address(x) + x.itemsize * (pixel * x_pitch + x_first)
        to = address(y) + y.itemsize * (pixel * y_pitch + y_first)
        call_narrow(kernel[0], (source, channels, to, 0, channels))


class Blocks(NamedTuple):
    """Sizes of blocks of pixels, each made from one pixel.

    Attributes:
        height: Lines of blocks of a slice.
        width: Blocks of a line.
        deep: Slices of a block.
        down: Its rows.
        across: Pixels of a row.
        channels: Of a pixel.
        y_pitch: Elements from one output pixel to the next.
        y_first: The channel that the first result is written to.
    """

    height: int
    width: int
    deep: int
    down: int
    across: int
    channels: int
    y_pitch: int
    y_first: int


@loop
def spread_blocks(x: Array, y: Array, blocks: Blocks, tid: int, nt: int) -> None:
    """``y[d, e, i, a, j, b, :] = x[d, i, j, e, a, b, :]``: the pixels of blocks in their places.

    Args:
        x: Input (slices, height, width, deep, down, across, channels), flat.
        y: Output (slices, deep, height, down, width, across, y_pitch), flat.
        blocks: The sizes.
        tid: This thread.
        nt: All threads; they share the lines of blocks.
    """
    height, width, deep, down, across, channels, y_pitch, y_first = blocks
    run, pixels = channels, across
    if y_pitch == channels:
        run, pixels = channels * across, 1
    rows = deep * down
    lines = x.size // (width * rows * across * channels)
    for line in range(lines * tid // nt, lines * (tid + 1) // nt):
        upper = line // height
        for row in range(rows):
            e = row // down
            below = ((upper * deep + e) * height + line - upper * height) * down + row - e * down
            to = below * width * across * y_pitch + y_first
            for j in range(width):
                source = ((line * width + j) * rows + row) * across * channels
                for _ in range(pixels):
                    for i in range(run):
                        y[np.uint64(to + i)] = x[np.uint64(source + i)]
                    source += run
                    to += y_pitch * across // pixels


@loop
def interleave_groups(x: Array, y: Array, groups: int, others: int, tid: int, nt: int) -> None:
    """``y[p, i, g] = x[p, g, i]``; threads share the pixels.

    Args:
        x: Input (pixels, groups, others), flat.
        y: Output (pixels, others, groups), flat.
        groups: Groups of channels.
        others: Channels of a group.
        tid: This thread.
        nt: All threads.
    """
    channels = groups * others
    pixels = x.size // channels
    for pixel in range(pixels * tid // nt, pixels * (tid + 1) // nt):
        source = x[pixel * channels : (pixel + 1) * channels]
        target = y[pixel * channels : (pixel + 1) * channels]
        for g in range(groups):
            for i in range(others):
                target[np.uint64(i * groups + g)] = source[np.uint64(g * others + i)]
