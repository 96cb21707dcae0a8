"""Normalization of groups of channels of images with channels last.

Moments are kept per channel, so that threads share channels whatever a group is, then put together
to those of groups, then pixels are normalized, which threads share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.jit.intrinsics.address_call import address
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.nhwc.window import ChannelSlice
from partita_cpu.scalar.activations import ActivationFields, activate_floats
from partita_cpu.scalar.instructions import muladd

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


@loop
def channel_moments(
    x: Any, moments: Moments, pixels: int, channels: ChannelSlice, tid: int, nt: int
) -> None:
    """Moments of each channel of each image.

    Args:
        x: Images (N, pixels, x_pitch), flat.
        moments: What is computed.
        pixels: Of an image.
        channels: Which ones are read.
        tid: This thread.
        nt: All threads; they share the channels.
    """
    count, pitch = channels.number, channels.x_pitch
    images = moments.center.size // count
    pieces = -(-count // LANES)
    begin = pieces * tid // nt * LANES
    width = min(pieces * (tid + 1) // nt * LANES, count) - begin
    for image in range(images if width > 0 else 0):
        source, at = image * pixels * pitch + channels.x_first + begin, image * count + begin
        center = moments.center[at : at + width]
        total, squares = moments.rest[at : at + width], moments.square[at : at + width]
        part = moments.part[2 * at : 2 * at + width]
        square = moments.part[2 * at + width : 2 * at + 2 * width]
        step = SAMPLES if pixels >= SAMPLES * SAMPLES else 1
        for c in range(width):
            total[c], squares[c] = np.float64(0), np.float64(0)
        for first in range(0, pixels, BLOCK * step):
            for c in range(width):
                part[c] = np.float32(0)
            for pixel in range(first, min(first + BLOCK * step, pixels), step):
                row = x[source + pixel * pitch : source + pixel * pitch + width]
                for c in range(width):
                    part[c] += row[c]
            for c in range(width):
                total[c] += np.float64(part[c])
        share = 1 / np.float64(-(-pixels // step))
        for c in range(width):
            center[c] = np.float32(total[c] * share)
            total[c] = np.float64(0)
        for first in range(0, pixels, BLOCK):
            for c in range(width):
                part[c], square[c] = np.float32(0), np.float32(0)
            stop = min(first + BLOCK, pixels)
            fours = first + (stop - first) // 4 * 4
            for pixel in range(first, fours, 4):
                _add_four(x, source + pixel * pitch, pitch, center, part, square)
            for pixel in range(fours, stop):
                row = x[source + pixel * pitch : source + pixel * pitch + width]
                for c in range(width):
                    difference = row[c] - center[c]
                    part[c] += difference
                    square[c] = muladd(difference, difference, square[c])
            for c in range(width):
                total[c] += np.float64(part[c])
                squares[c] += np.float64(square[c])
        share = 1 / np.float64(pixels)
        for c in range(width):
            total[c], squares[c] = total[c] * share, squares[c] * share


@loop(inline=True)
def _add_four(x: Any, at: int, pitch: int, center: Any, part: Any, square: Any) -> None:
    """Adds the differences of four pixels from the center, and their squares."""
    width = center.size
    row0, row1 = x[at : at + width], x[at + pitch : at + pitch + width]
    row2 = x[at + 2 * pitch : at + 2 * pitch + width]
    row3 = x[at + 3 * pitch : at + 3 * pitch + width]
    for c in range(width):
        a, b = row0[c] - center[c], row1[c] - center[c]
        d, e = row2[c] - center[c], row3[c] - center[c]
        part[c] += (a + b) + (d + e)
        square[c] += muladd(a, a, b * b) + muladd(d, d, e * e)


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
    x: Any,
    factors: GroupFactors,
    y: Any,
    pixels: int,
    channels: ChannelSlice,
    activation: ActivationFields,
    tid: int,
    nt: int,
) -> None:
    """Normalizes every pixel, then applies an activation.

    Args:
        x: Images (N, pixels, x_pitch), flat.
        factors: Of all channels of all images.
        y: Output (N, pixels, y_pitch), flat.
        pixels: Of an image.
        channels: Which ones are read and written.
        activation: The activation.
        tid: This thread.
        nt: All threads; they share the pixels of all images.
    """
    count, code = channels.number, activation.code
    a, b = np.float32(activation.alpha), np.float32(activation.beta)
    rows, bias = y.size // channels.y_pitch, factors.bias
    dense = channels.y_pitch == count
    block = max(AT_ONCE // count, 1) if dense else 1
    end = rows * (tid + 1) // nt
    for start in range(rows * tid // nt, end, block):
        stop = min(start + block, end)
        for row in range(start, stop):
            source = row * channels.x_pitch + channels.x_first
            to, at = row * channels.y_pitch + channels.y_first, row // pixels * count
            before, after = x[source : source + count], y[to : to + count]
            mean, missing = factors.mean[at : at + count], factors.missing[at : at + count]
            factor = factors.factor[at : at + count]
            for c in range(count):
                after[c] = muladd((before[c] - mean[c]) - missing[c], factor[c], bias[c])
        if code:
            place = address(y) + 4 * (start * channels.y_pitch + channels.y_first)
            activate_floats(place, (stop - start) * count, code, a, b)
