"""Normalization of groups of channels of images with channels last.

Moments are kept per channel, so that threads share channels whatever a group is, then put together
to those of groups, then pixels are normalized, which threads share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_channel_sums,
    call_convert,
    call_normalize_pixels,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.nhwc.channel_slice import ChannelSlice
from partita_cpu.scalar.activations import activate_floats

LANES = 16
"""Channels that a thread takes at least: those of one line of the cache."""

BLOCK = 128
"""Pixels whose sums are kept in float32 before they enter those in float64."""

SAMPLES = 8
"""A channel's moments are taken about the mean of one pixel of so many.

That mean is off by less than three deviations, so that no more than a digit is lost.
"""

AT_ONCE = 2048
"""Elements that are normalized before the activation goes over them in the first cache."""


class Moments(NamedTuple):
    """Of each channel of each image; flat.

    Attributes:
        center: What moments are taken about; float32.
        rest: Mean of the differences from that; float64.
        square: Mean of their squares; float64.
        part: Memory for sums of a block, two for each channel; float32.
    """

    center: KernelArray
    rest: KernelArray
    square: KernelArray
    part: KernelArray


class GroupFactors(NamedTuple):
    """What makes normalized elements: ``((x - mean) - missing) * factor + bias``.

    Attributes:
        mean: Of a channel's group, for each channel of each image, flat; all are float32.
        missing: What the type of the mean has no room for.
        factor: The inverse deviation times the scale.
        bias: For each channel.
    """

    mean: KernelArray
    missing: KernelArray
    factor: KernelArray
    bias: KernelArray


class PixelEnd(NamedTuple):
    """What becomes of normalized elements.

    Attributes:
        slope: What is below 0 is multiplied by it.
        low: Lower bound.
        high: Upper bound.
        activate: Address of what applies the rest of an activation to a run of bfloat16, or 0.
        code: The rest of an activation of float32; see `ActivationFields`.
        alpha: Its first attribute.
        beta: Its second one.
    """

    slope: float
    low: float
    high: float
    activate: int
    code: int
    alpha: float
    beta: float


@loop
def channel_moments(
    x: Array,
    moments: Moments,
    kernel: Array,
    pixels: int,
    channels: ChannelSlice,
    tid: int,
    nt: int,
) -> None:
    """Moments of each channel of each image.

    Args:
        x: Images (N, pixels, x_pitch), flat; float32, or bfloat16 as uint16.
        moments: What is computed.
        kernel: What adds up pixels; see `llvm.images.group_normalization`.
        pixels: Of an image.
        channels: Which ones are read.
        tid: This thread.
        nt: All threads; they share the channels.
    """
    count, pixel_bytes = channels.number, x.itemsize * channels.x_pitch
    images = moments.center.size // count
    pieces = -(-count // LANES)
    begin = pieces * tid // nt * LANES
    width = min(pieces * (tid + 1) // nt * LANES, count) - begin
    step = SAMPLES if pixels >= SAMPLES * SAMPLES else 1
    samples = -(-pixels // step)
    for image in range(images if width > 0 else 0):
        source = address(x) + x.itemsize * (channels.x_first + begin) + image * pixels * pixel_bytes
        at = image * count + begin
        center = moments.center[at : at + width]
        total, squares = moments.rest[at : at + width], moments.square[at : at + width]
        part = moments.part[2 * at : 2 * at + width]
        square = moments.part[2 * at + width : 2 * at + 2 * width]
        ends = address(center), address(part), address(square)
        for c in range(width):
            center[c], total[c], squares[c] = np.float32(0), np.float64(0), np.float64(0)
        for first in range(0, samples, BLOCK):
            rows, stride = min(BLOCK, samples - first), step * pixel_bytes
            call_channel_sums(kernel[0], (rows, width, source + first * stride, stride, *ends))
            for c in range(width):
                total[c] += np.float64(part[c])
        share = 1 / np.float64(samples)
        for c in range(width):
            center[c] = np.float32(total[c] * share)
            total[c] = np.float64(0)
        for first in range(0, pixels, BLOCK):
            rows, place = min(BLOCK, pixels - first), source + first * pixel_bytes
            call_channel_sums(kernel[0], (rows, width, place, pixel_bytes, *ends))
            for c in range(width):
                total[c] += np.float64(part[c])
                squares[c] += np.float64(square[c])
        share = 1 / np.float64(pixels)
        for c in range(width):
            total[c], squares[c] = total[c] * share, squares[c] * share


@loop
def group_factors(
    moments: Moments,
    scale: Any,
    factors: GroupFactors,
    groups: int,
    epsilon: float,
    tid: int,
    nt: int,
) -> None:
    """Puts the moments of channels together to those of their groups.

    Args:
        moments: Of the channels.
        scale: For each channel.
        factors: Receives all but the bias.
        groups: Of an image.
        epsilon: Added to variances.
        tid: This thread.
        nt: All threads; they share the groups of all images.
    """
    within = scale.size // groups
    rows, share = moments.center.size // within, 1 / np.float64(within)
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        first, mean = row * within, np.float64(0)
        for c in range(first, first + within):
            mean += np.float64(moments.center[c]) + moments.rest[c]
        mean *= share
        variance = np.float64(0)
        for c in range(first, first + within):
            rest = moments.rest[c]
            off = np.float64(moments.center[c]) - mean + rest
            own = moments.square[c] - rest * rest
            own = np.float64(0) if own < 0 else own  # and not max: it would swallow NaN
            variance += own + off * off
        inverse = 1 / np.sqrt(variance * share + epsilon)
        high = np.float32(mean)
        low = np.float32(mean - np.float64(high))
        for c in range(first, first + within):
            factors.mean[c], factors.missing[c] = high, low
            factor = inverse * np.float64(scale[row % groups * within + c - first])
            factors.factor[c] = np.float32(factor)


@loop
def normalize_pixels(
    x: Array,
    factors: GroupFactors,
    y: Array,
    kernel: Array,
    pixels: int,
    channels: ChannelSlice,
    end: PixelEnd,
    tid: int,
    nt: int,
) -> None:
    """Normalizes every pixel, then applies an activation.

    Args:
        x: Images (N, pixels, x_pitch), flat; float32, or bfloat16 as uint16.
        factors: Of all channels of all images.
        y: Output (N, pixels, y_pitch), flat; float32, or bfloat16 as uint16.
        kernel: What normalizes pixels; see `llvm.images.group_normalization`.
        pixels: Of an image.
        channels: Which ones are read and written.
        end: Bounds and the activation.
        tid: This thread.
        nt: All threads; they share the pixels of all images.
    """
    count, rows = channels.number, y.size // channels.y_pitch
    x_bytes, y_bytes = x.itemsize * channels.x_pitch, y.itemsize * channels.y_pitch
    source = address(x) + x.itemsize * channels.x_first
    result = address(y) + y.itemsize * channels.y_first
    slope, low, high = np.float32(end.slope), np.float32(end.low), np.float32(end.high)
    start, stop, block = rows * tid // nt, rows * (tid + 1) // nt, max(AT_ONCE // count, 1)
    while start < stop:
        image = start // pixels
        some = min(block, min(stop, (image + 1) * pixels) - start)
        at, place = 4 * image * count, result + start * y_bytes
        call_normalize_pixels(
            kernel[0],
            (
                some,
                count,
                source + start * x_bytes,
                x_bytes,
                place,
                y_bytes,
                address(factors.mean) + at,
                address(factors.missing) + at,
                address(factors.factor) + at,
                address(factors.bias),
                slope,
                low,
                high,
            ),
        )
        if end.code or end.activate:
            runs = 1 if channels.y_pitch == count else some
            for run in range(runs):
                to, length = place + run * y_bytes, some // runs * count
                if end.activate:
                    call_convert(end.activate, (to, length, to))
                else:
                    alpha, beta = np.float32(end.alpha), np.float32(end.beta)
                    activate_floats(to, length, end.code, alpha, beta)
        start += some
