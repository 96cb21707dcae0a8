"""Loops over pixels of images with channels last: sums, products, gates, scaling, nearest ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.product_records import InputScaling
from partita_cpu.jit.intrinsics.address_call import address, call_combine, call_narrow, call_scale
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.nhwc.channel_slice import ChannelSlice
from partita_cpu.scalar.activations import ActivationFields, activate_floats


class SecondImage(NamedTuple):
    """Which channels of a second image are read.

    Attributes:
        pitch: Elements from one pixel to the next.
        first: The first channel.
    """

    pitch: int
    first: int


@loop
def combine_images(
    a: Array,
    b: Array,
    y: Array,
    kernel: Array,
    channels: ChannelSlice,
    second: SecondImage,
    tid: int,
    nt: int,
) -> None:
    """``y = a + b`` or ``y = a * b``, some channels of each.

    Args:
        a: Pixels, flat; float32, or bfloat16 as uint16, and then b and y as well.
        b: As many pixels, flat.
        y: As many, flat.
        kernel: What adds or multiplies rows; see `llvm.elementwise_rows`.
        channels: Which ones of a are read, and where y is written.
        second: Which ones of b are read.
        tid: This thread.
        nt: All threads; they share the pixels.
    """
    unit, count = y.itemsize, channels.number
    pixels = y.size // channels.y_pitch
    begin, end = pixels * tid // nt, pixels * (tid + 1) // nt
    rows, columns = end - begin, count
    if channels.x_pitch == channels.y_pitch == second.pitch == count:
        rows, columns = 1, (end - begin) * count
    call_combine(
        kernel[0],
        (
            rows,
            columns,
            address(a) + unit * (begin * channels.x_pitch + channels.x_first),
            unit * channels.x_pitch,
            address(b) + unit * (begin * second.pitch + second.first),
            unit * second.pitch,
            address(y) + unit * (begin * channels.y_pitch + channels.y_first),
            unit * channels.y_pitch,
        ),
    )


@loop
def gate_images(
    x: Array,
    factor: Array,
    zeros: Array,
    y: Array,
    kernel: Array,
    channels: ChannelSlice,
    tid: int,
    nt: int,
) -> None:
    """Every channel of every image times a number of its own.

    Args:
        x: Input (N, pixels, x_pitch), flat; float32, or bfloat16 as uint16, and then y as well.
        factor: (N, channels), flat; float32.
        zeros: One for each channel.
        y: Output (N, pixels, y_pitch), flat.
        kernel: The conversion that scales.
        channels: Which ones are read and written.
        tid: This thread.
        nt: All threads; they share the pixels.
    """
    count = channels.number
    pixels = y.size // channels.y_pitch
    of_image = pixels * count // factor.size
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    for pixel in range(pixels * tid // nt, pixels * (tid + 1) // nt):
        source = address(x) + x.itemsize * (pixel * channels.x_pitch + channels.x_first)
        to = address(y) + y.itemsize * (pixel * channels.y_pitch + channels.y_first)
        numbers = address(factor) + 4 * (pixel // of_image * count)
        run = (source, count, to, 0, count, numbers, address(zeros), lowest, highest)
        call_scale(kernel[0], run)


@loop
def take_pixels(
    x: Array,
    y: Array,
    down: Array,
    across: Array,
    kernel: Array,
    channels: ChannelSlice,
    height: int,
    width: int,
    tid: int,
    nt: int,
) -> None:
    """``y[n, i, j] = x[n, down[i], across[j]]``, some channels of each pixel.

    Args:
        x: Input (N, height, width, x_pitch), flat; float32, or bfloat16 as uint16.
        y: Output (N, rows, columns, y_pitch), flat; of the same type.
        down: Input row of each output row.
        across: Input column of each output column.
        kernel: The copy.
        channels: Which ones are read and written.
        height: Rows of x.
        width: Columns of x.
        tid: This thread.
        nt: All threads; they share the output's rows.
    """
    unit, count = x.itemsize, channels.number
    lines = y.size // (across.size * channels.y_pitch)
    for line in range(lines * tid // nt, lines * (tid + 1) // nt):
        image = line // down.size
        row = image * height + down[line - image * down.size]
        source = address(x) + unit * (row * width * channels.x_pitch + channels.x_first)
        to = address(y) + unit * (line * across.size * channels.y_pitch + channels.y_first)
        for column in range(across.size):
            at = source + unit * across[column] * channels.x_pitch
            call_narrow(kernel[0], (at, count, to, 0, count))
            to += unit * channels.y_pitch


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
