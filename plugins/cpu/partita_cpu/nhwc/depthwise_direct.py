"""Depthwise convolution of images with channels last, some output pixels after one another.

The results go to an image, or to where a product takes them from. The kernels are those of
`llvm.images.depthwise_pixels`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita.lowering.shapes.symbolic_size import evaluated, integers
from partita_cpu.gemm.shares import own_share
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_activate,
    call_convert,
    call_depthwise_pixels,
)
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.llvm.epilogue import VECTORS
from partita_cpu.llvm.images.depthwise_pixels import (
    ACROSS,
    EVEN_FIRST,
    PIXELS,
    STRIDES,
    Products,
    depthwise_part,
)
from partita_cpu.llvm.levels import Level
from partita_cpu.scalar.subnormal import flushed_array

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
    _FAR,
) = range(17)
"""What `places` holds."""


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_ALMOST, _MOST = PIXELS[-2:]
"""The largest numbers of pixels that there are kernels for: as many sums as registers hold, and one
less, which divides lines evenly that the largest one does not. Smaller ones are powers of two."""


def takes(window: Window) -> bool:
    """Whether there are kernels for a window."""
    known = window.kernel[2] in ACROSS and window.stride[2] in STRIDES
    return known and window.dilation[2] == 1 and min(window.begin + window.end) >= 0


def places(
    window: Window,
    level: Level,
    channels: int,
    x_pitch: int,
    x_first: int,
    half: bool,
    far: bool = True,
) -> Array:
    """What `depthwise_pixels` has to know about an image.

    Args:
        window: Of depth 1; one that `takes` takes.
        level: Whose kernels.
        channels: How many channels the image has.
        x_pitch: Elements from one input pixel to the next.
        x_first: The first channel that is read.
        half: Whether the image is bfloat16.
        far: Whether it is asked for ahead, since it may not lie in the second-level cache.
    """
    across = window.size[1:], window.kernel[1:], window.stride[1:], window.dilation[1:2]
    sizes = [n for numbers in (*across, window.begin[1:], window.out[1:]) for n in numbers]
    rest = [channels, x_pitch, x_first, 2 if half else 4, level.lanes, int(far)]
    return integers([*sizes, *rest])


@functools.cache
def depthwise_kernels(level: Level, across: int, stride: int, products: Products) -> Array:
    """Kernels by number of pixels; 0 in unused places."""
    known = llvm_kernel.addresses(level, depthwise_part(across, products))
    table = np.zeros(PIXELS[-1] + 1, np.int64)
    for pixels in PIXELS:
        table[pixels] = known[f"{products.value}_{across}_{stride}_{pixels}"]
    return table


def pack_taps(w: Array, lanes: int, least: int = 0, products: Products = Products.FLOATS) -> Array:
    """Weights (channels, 1, down, across) as (block of channels, tap, lane), flat.

    With zeros for channels up to `least`; in the order of kernels of bfloat16 for these. In pairs
    the places of a row's first taps hold two neighbours in bfloat16 each, of blocks that are
    computed two at a time; the last one stands in both halves.
    """
    channels, across, half = w.shape[0], w.shape[3], products is not Products.FLOATS
    blocks = -(-max(channels, least) // lanes)
    padded = np.zeros((blocks * lanes, w[0].size), np.float32)
    padded[:channels] = _ordered(flushed_array(w).reshape(channels, -1), half)
    packed = padded.reshape(blocks, lanes, -1, across).transpose(0, 2, 3, 1)
    packed = np.ascontiguousarray(packed)
    if products is Products.PAIRS:
        paired = channels // len(EVEN_FIRST) * len(EVEN_FIRST) // lanes
        halves = packed[:paired].astype(BFLOAT16).view(np.uint16)
        words = packed[:paired].view(np.uint16).reshape(*halves.shape, 2)
        firsts = [*range(0, across, 2)]
        words[:, :, : len(firsts), :, 0] = halves[:, :, firsts]
        words[:, :, : len(firsts), :, 1] = halves[:, :, [*range(1, across, 2), across - 1]]
    return packed.reshape(-1)


def pack_row(bias: Array | None, lanes: int, channels: int, half: bool = False) -> Array:
    """One number per channel, with zeros up to a multiple of a vector; `half`: as `pack_taps`."""
    row = np.zeros(-(-channels // lanes) * lanes, np.float32)
    if bias is not None:
        row[: bias.size] = _ordered(flushed_array(bias).reshape(-1), half)
    return row


def _ordered(rows: Array, half: bool) -> Array:
    """Rows, one for each channel, as kernels of bfloat16 or of float32 compute channels."""
    whole = len(rows) // len(EVEN_FIRST) * len(EVEN_FIRST) if half else 0
    order = np.arange(whole).reshape(-1, len(EVEN_FIRST))[:, EVEN_FIRST].reshape(-1)
    return np.concatenate([rows[order], rows[whole:]])


class Depthwise(NamedTuple):
    """A depthwise convolution: every channel's weighted sums, bounded and perhaps gated.

    Attributes:
        taps: `pack_taps`, of images in bfloat16 as their kernels take them.
        bias: `pack_row`, likewise.
        kernels: `depthwise_kernels`.
        p: `places`.
        low: Lower bound.
        high: Upper bound.
        gate: `gate_word` for HardSwish, else 0.
    """

    taps: KernelArray
    bias: KernelArray
    kernels: KernelArray
    p: KernelArray
    low: float
    high: float
    gate: int


class DepthwiseAddresses(NamedTuple):
    """The same with addresses of taps and bias, bounds in float32, and how many channels exist."""

    channels: int
    taps: int
    bias: int
    kernels: Array
    p: Array
    low: Any
    high: Any
    gate: int


class PixelTarget(NamedTuple):
    """Where results of a depthwise convolution go.

    Attributes:
        to: Address of the first result.
        pitch: Bytes from one pixel's results to the next.
        parts: In how many parts they are stored; see `llvm.images.depthwise_pixels`.
        low_plane: Bytes from one part to the next.
        stored: Channels to write.
    """

    to: int
    pitch: int
    parts: int
    low_plane: int
    stored: int


CHANNEL_GROUP = 32
"""Threads share channels by so many: whole cache lines, and what kernels compute together."""

SHORTER = 3 / 4
"""What the longest share has to be of what it is without shares of channels: kernels that compute
fewer channels at a time are called more often. Two threads mostly keep whole pixels.
"""


def channel_shares(window: Window, images: int, channels: int, threads: int) -> int:
    """In how many parts threads share the channels of a depthwise convolution of whole images.

    A thread computes its pixels of its channels, and reads the rows that their windows reach. Other
    threads have made these, in whose caches they lie: to fetch a vector takes about as long as its
    sums. The best number is the one with which the longest share is shortest, if by much.

    Args:
        window: The window.
        images: How many.
        channels: Of an image.
        threads: That share them.

    Returns:
        1 where threads share the pixels alone.
    """
    (height, width), (rows, columns) = window.size[1:], window.out[1:]
    reach = (window.kernel[1] - 1) * window.dilation[1] + 1
    sizes = rows, columns, height, width, reach, window.stride[1]
    # Decided at once: sizes for which it comes out the same have the same program.
    found: int = evaluated(_best_shares, images, channels, threads, *sizes)
    return found


def _best_shares(
    images: int,
    channels: int,
    threads: int,
    rows: int,
    columns: int,
    height: int,
    width: int,
    reach: int,
    stride: int,
) -> int:
    """`channel_shares` of numbers.

    Args:
        images: How many.
        channels: Of an image.
        threads: That share them.
        rows: Of the result.
        columns: Of the result.
        height: Of the image that is read.
        width: Of the image that is read.
        reach: Lines of it that a line of the result takes.
        stride: Lines of it from one line of the result to the next.
    """
    groups, pixels = -(-channels // CHANNEL_GROUP), images * rows * columns

    def longest(shares: int) -> int:
        own = -(-pixels // (threads // shares))
        lines = (-(-own // columns) - 1) * stride + reach
        return -(-groups // shares) * (own + min(lines, images * height) * width)

    best = min(range(1, max(1, min(threads, groups)) + 1), key=longest)
    return best if longest(best) <= SHORTER * longest(1) else 1


@loop(inline=True)
def depthwise_addresses(depthwise: Depthwise) -> Any:
    """What `depthwise_pixels` takes."""
    return DepthwiseAddresses(
        depthwise.p[_CHANNELS],
        address(depthwise.taps),
        address(depthwise.bias),
        depthwise.kernels,
        depthwise.p,
        np.float32(depthwise.low),
        np.float32(depthwise.high),
        depthwise.gate,
    )


@loop(
    apart=(*["int"] * 4, "<i8 1", "<i8 1", "single", "single", *["int"] * 8),
    answers=True,
    effort=Effort.CALLS,
)
def depthwise_pixels(
    x: int, depthwise: DepthwiseAddresses, first: int, stop: int, target: PixelTarget
) -> Any:
    """Every channel's weighted sums for a run of output pixels.

    Args:
        x: Address of the input.
        depthwise: The convolution, with taps and bias for at least as many channels as are stored.
        first: The first output pixel, counted through all images.
        stop: Behind the last one.
        target: Where results go.

    Returns:
        The largest absolute value, as bits; only of what is written as bfloat16.
    """
    p = depthwise.p
    unit, ow = p[_X_BYTES], p[_OUT_WIDTH]
    row_bytes = unit * p[_X_PITCH] * p[_WIDTH]
    line = first // ow
    column = first - line * ow
    image = line // p[_OUT_HEIGHT]
    line -= image * p[_OUT_HEIGHT]
    largest, to = 0, target.to
    while first < stop:
        count = min(ow - column, stop - first)
        start = line * p[_STRIDE_DOWN] - p[_TOP]
        above = min(max(0, -(start // p[_DILATION_DOWN])), p[_DOWN])
        exist = (p[_HEIGHT] - 1 - start) // p[_DILATION_DOWN] + 1
        below = max(min(p[_DOWN], exist), above)
        further = min(max(exist - below, 0), p[_STRIDE_DOWN]) if p[_FAR] else 0
        top = image * p[_HEIGHT] + start + above * p[_DILATION_DOWN]
        source = x + unit * p[_X_FIRST] + top * row_bytes
        taps = above, below, further
        found = _depthwise_line(source, to, depthwise, target, column, count, taps)
        largest = max(largest, found)
        to += count * target.pitch
        first += count
        column = 0
        line += 1
        if line == p[_OUT_HEIGHT]:
            line = 0
            image += 1
    return largest


@loop(inline=True)
def _depthwise_line(
    source: int,
    to: int,
    depthwise: DepthwiseAddresses,
    target: PixelTarget,
    column: int,
    count: int,
    taps: tuple[int, int, int],
) -> Any:
    """Output pixels of one line.

    Args:
        source: Address of the first row of the image that they need.
        to: Where results go.
        depthwise: The convolution.
        target: How results lie.
        column: The first of the pixels.
        count: How many.
        taps: Those down that lie in the image: the first one, and behind the last. How many rows
            below are asked for.
    """
    above, below, further = taps
    kernels, p = depthwise.kernels, depthwise.p
    across, stride, width, lanes = p[_ACROSS], p[_STRIDE], p[_WIDTH], p[_LANES]
    pixel_bytes = p[_X_BYTES] * p[_X_PITCH]
    tap_bytes = 4 * lanes * across
    bounds = depthwise.low, depthwise.high, depthwise.gate
    largest, last = 0, column + count
    while column < last:
        left = column * stride - p[_LEFT]
        n = _pixels_at_once(left, last - column, stride, across, width)
        groups = _groups_of(n, left, last - column, stride, across, width)
        found = call_depthwise_pixels(
            kernels[n],
            (
                source + left * pixel_bytes,
                p[_DILATION_DOWN] * pixel_bytes * width,
                pixel_bytes,
                below - above,
                further,
                -left,
                width - left,
                depthwise.taps + above * tap_bytes,
                p[_DOWN] * tap_bytes,
                depthwise.bias,
                -(-target.stored // lanes),
                depthwise.channels,
                target.stored,
                to,
                target.pitch,
                target.parts,
                target.low_plane,
                groups,
                *bounds,
            ),
        )
        largest = max(largest, found)
        to += n * groups * target.pitch
        column += n * groups
    return largest


@loop(inline=True)
def _pixels_at_once(left: int, rest: int, stride: int, across: int, width: int) -> Any:
    """Of how many of the next pixels there is a kernel; of one where windows are cut off."""
    n = _MOST
    if rest % _ALMOST == 0 and rest % _MOST:
        n = _ALMOST
    while n > rest:
        n //= 2
    need = (n - 1) * stride + across
    clipped = across // 2
    return 1 if -left > clipped or left + need - width > clipped else n


@loop(inline=True)
def _groups_of(n: int, left: int, rest: int, stride: int, across: int, width: int) -> Any:
    """How many groups of n pixels, from the next one on, one call computes.

    Args:
        n: `_pixels_at_once`.
        left: The column of the image that the first tap of the next pixel lies on.
        rest: Pixels that are left of the line.
        stride: Across.
        across: Taps across.
        width: Of the image.
    """
    if n == 1:
        return 1
    groups = rest // n
    if n == _MOST and rest % _MOST:
        # Until those that are left are computed evenly.
        groups = max(1, min(groups, rest % _ALMOST))
    inside = (across // 2 + width - left - across) // stride + 1
    return max(1, min(groups, inside // n))


@loop(effort=Effort.CALLS)
def depthwise_images(
    x: Array,
    depthwise: Depthwise,
    y: Array,
    y_pitch: int,
    y_first: int,
    shares: int,
    activate: int,
    tid: int,
    nt: int,
) -> None:
    """Depthwise convolution of whole images; threads share the pixels and the channels.

    Args:
        x: Input (N, H, W, x_pitch), flat; float32, or bfloat16 as uint16.
        depthwise: The convolution.
        y: Output (N, rows, columns, y_pitch), flat; of the same type.
        y_pitch: Elements from one output pixel to the next.
        y_first: The channel that the first result is written to.
        shares: Of the channels; see `channel_shares`.
        activate: Address of what is applied to results line by line, or 0: one of
            `llvm.activations.activate_rows`, or for bfloat16 of `activate_halves`.
        tid: This thread.
        nt: All threads.
    """
    p, unit = depthwise.p, y.itemsize
    pixels, width, wide = y.size // y_pitch, p[_OUT_WIDTH], VECTORS * p[_LANES]
    groups = -(-p[_CHANNELS] // CHANNEL_GROUP)
    first, stop, group, behind = own_share(shares, tid, nt, pixels, groups)
    before = group * CHANNEL_GROUP
    channels = min(behind * CHANNEL_GROUP, p[_CHANNELS]) - before
    source = address(x) + unit * before
    known = DepthwiseAddresses(
        channels,
        address(depthwise.taps) + 4 * before * p[_DOWN] * p[_ACROSS],
        address(depthwise.bias) + 4 * before,
        depthwise.kernels,
        p,
        np.float32(depthwise.low),
        np.float32(depthwise.high),
        depthwise.gate,
    )
    while first < stop:
        last = min(stop, (first // width + 1) * width) if activate else stop
        to = address(y) + unit * (first * y_pitch + y_first + before)
        target = PixelTarget(to, unit * y_pitch, 0, 0, channels)
        depthwise_pixels(source, known, first, last, target)
        if activate:
            _activate_pixels(activate, to, last - first, channels, unit, y_pitch, wide)
        first = last


@loop
def activate_images(
    y: Array, activate: int, channels: int, y_pitch: int, y_first: int, tid: int, nt: int
) -> None:
    """Applies an activation to images in bfloat16 where they lie; threads share the pixels.

    Args:
        y: (N, rows, columns, y_pitch) as uint16, flat.
        activate: Address of one of `llvm.activations.activate_halves`.
        channels: How many of a pixel it is applied to.
        y_pitch: Elements from one pixel to the next.
        y_first: The first of the channels.
        tid: This thread.
        nt: All threads.
    """
    pixels, unit = y.size // y_pitch, y.itemsize
    first, stop = pixels * tid // nt, pixels * (tid + 1) // nt
    to = address(y) + unit * (first * y_pitch + y_first)
    _activate_pixels(activate, to, stop - first, channels, unit, y_pitch, channels)


@loop
def _activate_pixels(
    activate: int, to: int, pixels: int, channels: int, unit: int, pitch: int, wide: int
) -> None:
    """Applies an activation to pixels where they lie.

    Args:
        activate: Address of the kernel.
        to: Address of the first pixel.
        pixels: How many.
        channels: Of a pixel.
        unit: Bytes of an element.
        pitch: Elements from pixel to pixel.
        wide: Columns that are activated at a time, in float32.
    """
    if unit == 4:
        for first in range(0, channels, wide):
            exist = min(wide, channels - first)
            call_activate(activate, (pixels, to + unit * first, unit * pitch, exist))
    elif pitch == channels:
        call_convert(activate, (to, pixels * channels, to))
    else:
        for pixel in range(pixels):
            place = to + unit * pixel * pitch
            call_convert(activate, (place, channels, place))
