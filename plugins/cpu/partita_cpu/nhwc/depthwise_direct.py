"""Depthwise convolution of images with channels last, some output pixels after one another.

The results go to an image, or to where a product takes them from; see `ir.weigh` for the kernels.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.intrinsics.address_call import address, call_weigh
from partita_cpu.jit.kernel import jit
from partita_cpu.llvm.images.depthwise_pixels import ACROSS, PIXELS, STRIDES
from partita_cpu.llvm.levels import Level

(
    _HEIGHT,
    _WIDTH,
    _DOWN,
    _ACROSS,
    _STRIDE_DOWN,
    _STRIDE,
    _DILATION_DOWN,
    _TOP,
    _LEFT,
    _OUT_HEIGHT,
    _OUT_WIDTH,
    _CHANNELS,
    _X_PITCH,
    _X_FIRST,
    _X_BYTES,
    _LANES,
) = range(16)
"""What `places` holds."""


def takes(window: Window) -> bool:
    """Whether there are kernels for a window."""
    known = window.kernel[2] in ACROSS and window.stride[2] in STRIDES
    return known and window.dilation[2] == 1 and min(window.begin + window.end) >= 0


def places(
    window: Window, level: Level, channels: int, x_pitch: int, x_first: int, half: bool
) -> Array:
    """What `weigh_pixels` has to know about an image.

    Args:
        window: Of depth 1; one that `takes` takes.
        level: Whose kernels.
        channels: Channels.
        x_pitch: Elements from one input pixel to the next.
        x_first: The first channel that is read.
        half: Whether the image is bfloat16.
    """
    across = window.size[1:], window.kernel[1:], window.stride[1:], window.dilation[1:2]
    sizes = [n for numbers in (*across, window.begin[1:], window.out[1:]) for n in numbers]
    rest = [channels, x_pitch, x_first, 2 if half else 4, level.lanes]
    return np.array([*sizes, *rest], np.int64)


@functools.cache
def weigh_kernels(level: Level, across: int, stride: int, half: bool) -> Array:
    """Kernels by number of pixels; 0 in unused places."""
    kind = "weigh_halves" if half else "weigh"
    known = llvm_kernel.addresses(level, f"_{kind}")
    table = np.zeros(PIXELS[-1] + 1, np.int64)
    for pixels in PIXELS:
        table[pixels] = known[f"{kind}_{across}_{stride}_{pixels}"]
    return table


def pack_taps(w: Array, lanes: int, least: int = 0) -> Array:
    """Weights (channels, 1, down, across) as (block of channels, tap, lane), flat.

    With zeros for channels up to `least`.
    """
    channels = w.shape[0]
    blocks = -(-max(channels, least) // lanes)
    padded = np.zeros((blocks * lanes, w[0].size), np.float32)
    padded[:channels] = w.reshape(channels, -1)
    packed = padded.reshape(blocks, lanes, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(packed).reshape(-1)


def pack_row(bias: Array | None, lanes: int, channels: int) -> Array:
    """One number per channel, with zeros up to a multiple of a vector."""
    row = np.zeros(-(-channels // lanes) * lanes, np.float32)
    if bias is not None:
        row[: bias.size] = bias.reshape(-1)
    return row


@jit(apart=(*["int"] * 3, "<i8 1", "<i8 1", "single", "single", *["int"] * 8), answers=True)
def weigh_pixels(
    x: int,
    w: int,
    bias: int,
    kernels: Array,
    p: Array,
    low: Any,
    high: Any,
    gate: int,
    first: int,
    stop: int,
    to: int,
    pitch: int,
    parts: int,
    low_plane: int,
    stored: int,
) -> Any:
    """Every channel's weighted sums, bounded and perhaps gated, for a run of output pixels.

    Args:
        x: Address of the input.
        w: Address of `pack_taps`, for at least `stored` channels.
        bias: Address of `pack_row`, likewise.
        kernels: `weigh_kernels`.
        p: `places`.
        low: Lower bound, a float32.
        high: Upper bound, likewise.
        gate: 1 for HardSwish, else 0.
        first: The first output pixel, counted through all images.
        stop: Behind the last one.
        to: Address of the first result.
        pitch: Bytes from one pixel's results to the next.
        parts: As in `ir.weigh.PARAMETERS`.
        low_plane: Likewise.
        stored: Channels to write.

    Returns:
        The largest absolute value, as bits; only of what is written as bfloat16.
    """
    height, width, unit, lanes = p[_HEIGHT], p[_WIDTH], p[_X_BYTES], p[_LANES]
    down, across, stride, dilation = p[_DOWN], p[_ACROSS], p[_STRIDE], p[_DILATION_DOWN]
    oh, ow = p[_OUT_HEIGHT], p[_OUT_WIDTH]
    pixel_bytes = unit * p[_X_PITCH]
    row_bytes = pixel_bytes * width
    line = first // ow
    column = first - line * ow
    image = line // oh
    line -= image * oh
    largest = 0
    place = first
    while place < stop:
        last = min(ow, column + stop - place)
        start = line * p[_STRIDE_DOWN] - p[_TOP]
        above = min(max(0, -(start // dilation)), down)
        below = max(min(down, (height - 1 - start) // dilation + 1), above)
        source = x + unit * p[_X_FIRST] + (image * height + start + above * dilation) * row_bytes
        taps = w + 4 * lanes * above * across
        while column < last:
            left = column * stride - p[_LEFT]
            rest = last - column
            n = 8
            if rest % 7 == 0 and rest % 8:
                n = 7
            elif rest < 8:
                n = 4 if rest >= 4 else 2 if rest >= 2 else 1
            need = (n - 1) * stride + across
            clipped = across // 2
            if -left > clipped or left + need - width > clipped:
                n = 1
            found = call_weigh(
                kernels[n],
                (
                    source + left * pixel_bytes,
                    dilation * row_bytes,
                    pixel_bytes,
                    below - above,
                    -left,
                    width - left,
                    taps,
                    4 * lanes * down * across,
                    bias,
                    -(-stored // lanes),
                    p[_CHANNELS],
                    stored,
                    to,
                    pitch,
                    parts,
                    low_plane,
                    low,
                    high,
                    gate,
                ),
            )
            largest = max(largest, found)
            to += n * pitch
            place += n
            column += n
        column = 0
        line += 1
        if line == oh:
            line = 0
            image += 1
    return largest


@jit
def weigh_images(
    x: Array,
    w: Array,
    bias: Array,
    y: Array,
    kernels: Array,
    p: Array,
    y_pitch: int,
    y_first: int,
    low: float,
    high: float,
    gate: int,
    tid: int,
    nt: int,
) -> None:
    """Depthwise convolution of whole images; threads share the pixels.

    Args:
        x: Input (N, H, W, x_pitch), flat; float32, or bfloat16 as uint16.
        w: `pack_taps`.
        bias: `pack_row`.
        y: Output (N, rows, columns, y_pitch), flat; of the same type.
        kernels: `weigh_kernels`.
        p: `places`.
        y_pitch: Elements from one output pixel to the next.
        y_first: The channel that the first result is written to.
        low: Lower bound.
        high: Upper bound.
        gate: 1 for HardSwish, else 0.
        tid: This thread.
        nt: All threads.
    """
    pixels = y.size // y_pitch
    first, stop = pixels * tid // nt, pixels * (tid + 1) // nt
    weigh_pixels(
        address(x),
        address(w),
        address(bias),
        kernels,
        p,
        np.float32(low),
        np.float32(high),
        gate,
        first,
        stop,
        address(y) + y.itemsize * (first * y_pitch + y_first),
        y.itemsize * y_pitch,
        0,
        0,
        p[_CHANNELS],
    )
