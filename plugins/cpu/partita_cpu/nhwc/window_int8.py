"""Depthwise convolution and maxima of images of bytes with channels last, row by row."""

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
    height, width = table[1], table[2]
    down, across = table[4], table[5]
    sh, sw, dh, dw = table[7], table[8], table[10], table[11]
    top, left = table[13], table[14]
    oh, ow = table[16], table[17]
    channels = numbers[CHANNELS]
    row_bytes = channels * width
    level = np.int64(y_zero[0])
    zero = np.float32(x_zero[0])
    low, high = np.float32(numbers[LOW] - level), np.float32(numbers[HIGH] - level)
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
            tap = first * across + begin
            call_depthwise_bytes(
                kernels[pixels],
                (
                    address(x) + line * row_bytes + (place + begin * dw) * channels,
                    dh * row_bytes,
                    dw * channels,
                    sw * channels,
                    last - first if end > begin else 0,
                    end - begin,
                    address(w) + tap * 4 * channels,
                    across * 4 * channels,
                    channels,
                    address(bias),
                    address(factors),
                    address(y) + (row * ow + column) * channels,
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
    """The largest level of each channel under each window; `lowest` where there is none.

    `kernel` is the address of one that finds them for neighbouring pixels, or 0.
    """
    height, width = table[1], table[2]
    down, across = table[4], table[5]
    sh, sw, dh, dw = table[7], table[8], table[10], table[11]
    top, left = table[13], table[14]
    oh, ow = table[16], table[17]
    # Between these columns all taps lie within the image.
    inner = min(-(-left // sw), ow)
    inner_end = max(min((width - 1 + left - (across - 1) * dw) // sw + 1, ow), inner)
    rows = y.size // (ow * channels)
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        image, start = row // oh, row % oh * sh - top
        first = min(max(0, -(start // dh)), down)
        last = max(min(down, (height - 1 - start) // dh + 1), first)
        line = image * height + start + first * dh
        column = 0
        while column < ow:
            place = column * sw - left
            begin, end, pixels = 0, across, 1
            if inner <= column < inner_end:
                pixels = inner_end - column
            else:
                begin = min(max(0, -(place // dw)), across)
                end = max(min(across, (width - 1 - place) // dw + 1), begin)
            at = (line * width + place + begin * dw) * channels
            to = (row * ow + column) * channels
            if kernel:
                steps = dh * width * channels, dw * channels, sw * channels
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
                    tap = at + (a * dh * width + b * dw) * channels
                    source = x[tap : tap + channels]
                    for i in range(target.size):
                        target[i] = max(target[i], source[i])
            column += 1
