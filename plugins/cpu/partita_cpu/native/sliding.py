"""Depthwise convolution and pooling of images with channels last, row by row."""

from __future__ import annotations

import numpy as np

from partita.lowering import Array
from partita_cpu.kernels.activation_scalar import activate
from partita_cpu.kernels.numba_jit import jit
from partita_cpu.kernels.scalar import like
from partita_cpu.native.invoke import address, call_window

WEIGH = 0
MAX = 1
MEAN = 2


@jit
def slide(
    x: Array,
    w: Array,
    bias: Array,
    y: Array,
    kernels: Array,
    table: Array,
    counts_down: Array,
    counts_across: Array,
    channels: int,
    kind: int,
    low: float,
    high: float,
    code: int,
    alpha: float,
    beta: float,
    tid: int,
    nt: int,
) -> None:
    """Every channel's window at every output pixel: weighted sum, maximum or mean.

    Args:
        x: Input (N, H, W, channels), flat.
        w: Weights (taps down, taps across, channels), flat; only for `WEIGH`.
        bias: One value per channel; only for `WEIGH`.
        y: Output, flat.
        kernels: `table.window_kernels`.
        table: `Window.table`, of depth 1.
        counts_down: For `MEAN`, elements that the windows of an output row count downwards.
        counts_across: And across, for each output column.
        channels: Channels.
        kind: `WEIGH`, `MAX` or `MEAN`.
        low: Lower bound, for `WEIGH`.
        high: Upper bound, for `WEIGH`.
        code: `ActivationCode` of what bounds do not express, or 0.
        alpha: Of the activation.
        beta: Of the activation.
        tid: This thread.
        nt: All threads; they share the output's rows.
    """
    height, width = table[1], table[2]
    down, across = table[4], table[5]
    sh, sw, dh, dw = table[7], table[8], table[10], table[11]
    top, left = table[13], table[14]
    oh, ow = table[16], table[17]
    pixel_bytes = 4 * channels
    row_bytes = pixel_bytes * width
    a, b = like(y[0], alpha), like(y[0], beta)
    factor, bound = np.float32(low), np.float32(high)
    # Between these columns all taps lie within the image.
    inner = min(-(-left // sw), ow)
    inner_end = max(min((width - 1 + left - (across - 1) * dw) // sw + 1, ow), inner)
    rows = y.size // (ow * channels)
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        image = row // oh
        start = row % oh * sh - top
        first = min(max(0, -(start // dh)), down)
        last = max(min(down, (height - 1 - start) // dh + 1), first)
        line = image * height + start + first * dh
        column = 0
        while column < ow:
            place = column * sw - left
            begin, end, pixels = 0, across, 1
            if inner <= column < inner_end:
                for n in (2, 4, 8):
                    if column + n <= inner_end:
                        pixels = n
            else:
                begin = min(max(0, -(place // dw)), across)
                end = max(min(across, (width - 1 - place) // dw + 1), begin)
            if kind == MEAN:
                factor = np.float32(1) / np.float32(counts_down[row % oh] * counts_across[column])
            tap = first * across + begin
            call_window(
                kernels[pixels],
                (
                    address(x) + line * row_bytes + (place + begin * dw) * pixel_bytes,
                    dh * row_bytes,
                    dw * pixel_bytes,
                    sw * pixel_bytes,
                    last - first if end > begin else 0,
                    end - begin,
                    address(w) + tap * pixel_bytes,
                    across * pixel_bytes,
                    channels,
                    address(bias),
                    address(y) + (row * ow + column) * pixel_bytes,
                    factor,
                    bound,
                ),
            )
            column += pixels
        if code:
            activate(y[row * ow * channels : (row + 1) * ow * channels], code, a, b)


@jit
def over_all_pixels(
    x: Array, y: Array, kernels: Array, channels: int, factor: float, tid: int, nt: int
) -> None:
    """Each channel's mean (or maximum) over whole images; threads share the channels.

    Args:
        x: Input (N, pixels, channels), flat.
        y: Output (N, channels), flat.
        kernels: `table.window_kernels` for sums (or maxima).
        channels: Channels.
        factor: What sums are multiplied by.
        tid: This thread.
        nt: All threads.
    """
    images = y.size // channels
    pixels = x.size // y.size
    pieces = -(-channels // 16)
    begin = pieces * tid // nt * 16
    end = min(pieces * (tid + 1) // nt * 16, channels)
    if begin >= end:
        return
    for image in range(images):
        source = address(x) + 4 * (image * pixels * channels + begin)
        target = address(y) + 4 * (image * channels + begin)
        call_window(
            kernels[1],
            (
                source,
                0,
                4 * channels,
                0,
                1,
                pixels,
                source,
                0,
                end - begin,
                source,
                target,
                np.float32(factor),
                np.float32(0),
            ),
        )


@jit
def swap_axes(x: Array, y: Array, rows: int, columns: int, pitch: int, tid: int, nt: int) -> None:
    """``y[n, j, i] = x[n, i, j]``, with zeros behind; threads share blocks of columns.

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
    for piece in range(images * pieces * tid // nt, images * pieces * (tid + 1) // nt):
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
        for top in range(0, rows, block):
            bottom = min(top + block, rows)
            for j in range(first, last):
                to, at = target + j * pitch, source + j
                for i in range(top, bottom):
                    y[np.uint64(to + i)] = x[np.uint64(at + i * columns)]
        for j in range(first, last):
            for i in range(rows, pitch):
                y[target + j * pitch + i] = np.float32(0)


@jit
def scale_and_shift(
    x: Array,
    factor: Array,
    shift: Array,
    y: Array,
    low: float,
    high: float,
    code: int,
    alpha: float,
    beta: float,
    tid: int,
    nt: int,
) -> None:
    """``y = activation(min(max(x * factor + shift, low), high))`` per channel; channels last."""
    channels = factor.size
    pixels = x.size // channels
    bottom, top = np.float32(low), np.float32(high)
    a, b = like(y[0], alpha), like(y[0], beta)
    for pixel in range(pixels * tid // nt, pixels * (tid + 1) // nt):
        source = x[pixel * channels : (pixel + 1) * channels]
        target = y[pixel * channels : (pixel + 1) * channels]
        for i in range(channels):
            value = source[i] * factor[i] + shift[i]
            value = bottom if value < bottom else value
            target[i] = top if value > top else value
        if code:
            activate(target, code, a, b)


@jit
def spread_blocks(x: Array, y: Array, width: int, down: int, run: int, tid: int, nt: int) -> None:
    """``y[i, a, j, :] = x[i, j, a, :]``: the rows of blocks of pixels in their places.

    Args:
        x: Input (lines, width, down, run), flat; a block is `down` rows of `run` elements.
        y: Output (lines, down, width, run), flat.
        width: Blocks of a line.
        down: Rows of a block.
        run: Elements of a row of a block.
        tid: This thread.
        nt: All threads; they share the lines.
    """
    lines = x.size // (width * down * run)
    for line in range(lines * tid // nt, lines * (tid + 1) // nt):
        for a in range(down):
            to = (line * down + a) * width * run
            for j in range(width):
                source = ((line * width + j) * down + a) * run
                for i in range(run):
                    y[np.uint64(to + j * run + i)] = x[np.uint64(source + i)]
