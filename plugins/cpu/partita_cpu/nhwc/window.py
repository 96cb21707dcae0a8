"""Depthwise convolution and pooling of images with channels last, row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.product_records import Epilogue
from partita_cpu.jit.intrinsics.address_call import address, call_window
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.nhwc.channel_slice import ChannelSlice
from partita_cpu.nhwc.window_walk import pixels_at_once, taps_across, taps_down, window_geometry
from partita_cpu.scalar.activations import activate_floats

CONVOLVE = 0
MAX = 1
MEAN = 2

_FEW_ROWS = 4
"""Of a thread: threads share the pixels of fewer rows, as those of sound are."""


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
    together = over.columns if rows >= _FEW_ROWS * nt else 1
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
