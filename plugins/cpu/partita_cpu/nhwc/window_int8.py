"""8-bit depthwise convolution and max pooling of images with channels last, row by row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_depthwise_bytes,
    call_largest_bytes,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.nhwc.window_walk import pixels_at_once, taps_across, taps_down, window_geometry

LOW, HIGH, CHANNELS = 0, 1, 2
"""Places in the numbers that `slide_bytes` takes."""


class ByteTaps(NamedTuple):
    """A depthwise convolution of levels.

    Attributes:
        w: Weights (taps down, taps across, channels) less their level of 0, flat; float32.
        bias: One per channel, float32.
        factors: From sums to levels, one per channel.
        x_zero: The level of x that is 0.
        y_zero: The level of y that is 0.
    """

    w: KernelArray
    bias: KernelArray
    factors: KernelArray
    x_zero: KernelArray
    y_zero: KernelArray


@loop
def slide_bytes(
    x: Array,
    taps: ByteTaps,
    y: Array,
    kernels: Array,
    table: Array,
    numbers: Array,
    tid: int,
    nt: int,
) -> None:
    """Every channel's weighted sum at every output pixel, quantized again.

    Args:
        x: Input (N, H, W, channels), flat; int8 or uint8.
        taps: The convolution.
        y: Output, flat.
        kernels: `tile_kernels.byte_window_kernels`.
        table: `Window.table`, of depth 1.
        numbers: Least and largest level of y, channels.
        tid: This thread.
        nt: All threads; they share the output's rows.
    """
    w, bias, factors, x_zero, y_zero = taps
    over, channels = window_geometry(table), numbers[CHANNELS]
    row_bytes = channels * over.width
    level = np.int64(y_zero[0])
    zero = np.float32(x_zero[0])
    low, high = np.float32(numbers[LOW] - level), np.float32(numbers[HIGH] - level)
    rows = y.size // (over.columns * channels)
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        first, last, line = taps_down(over, row)
        column = 0
        while column < over.columns:
            begin, end, pixel = taps_across(over, column)
            pixels = pixels_at_once(over, column)
            tap = first * over.across + begin
            call_depthwise_bytes(
                kernels[pixels],
                (
                    address(x) + line * row_bytes + pixel * channels,
                    over.dilation_down * row_bytes,
                    over.dilation_across * channels,
                    over.stride_across * channels,
                    last - first if end > begin else 0,
                    end - begin,
                    address(w) + tap * 4 * channels,
                    over.across * 4 * channels,
                    channels,
                    address(bias),
                    address(factors),
                    address(y) + (row * over.columns + column) * channels,
                    channels,
                    zero,
                    low,
                    high,
                    level,
                ),
            )
            column += pixels


@loop
def largest_bytes(
    x: Any, y: Any, table: Any, channels: int, lowest: int, kernel: int, tid: int, nt: int
) -> None:
    """The largest level of each channel under each window.

    Args:
        x: Input (N, H, W, channels), flat; int8 or uint8.
        y: Output, flat.
        table: `Window.table`, of depth 1.
        channels: Of a pixel.
        lowest: The result where a window has no tap within the image.
        kernel: Address of one that computes neighbouring pixels, or 0 for a level without it.
        tid: This thread.
        nt: All threads; they share the output's rows.
    """
    over = window_geometry(table)
    tap_down, tap_across = over.dilation_down * over.width, over.dilation_across
    rows = y.size // (over.columns * channels)
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        first, last, line = taps_down(over, row)
        column = 0
        while column < over.columns:
            begin, end, pixel = taps_across(over, column)
            at = (line * over.width + pixel) * channels
            to = (row * over.columns + column) * channels
            if kernel:
                inner = over.inner <= column < over.inner_end
                pixels = over.inner_end - column if inner else 1
                steps = tap_down * channels, tap_across * channels, over.stride_across * channels
                taps = last - first, end - begin, channels
                call_largest_bytes(
                    kernel, (address(x) + at, *steps, *taps, address(y) + to, pixels)
                )
                column += pixels
                continue
            target = y[to : to + channels]
            target[:] = lowest
            for a in range(last - first):
                for b in range(end - begin):
                    tap = at + (a * tap_down + b * tap_across) * channels
                    source = x[tap : tap + channels]
                    for i in range(target.size):
                        target[i] = max(target[i], source[i])
            column += 1
