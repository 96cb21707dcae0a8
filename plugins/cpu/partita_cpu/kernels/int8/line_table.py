"""Lines of an image that byte convolutions read: their copy with padding, and the table for it.

The table has sizes of image and window, and shares of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita.lowering.shapes.symbolic_size import evaluated, highest, integers
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.shares import shares_across
from partita_cpu.jit.intrinsics.address_call import address, call_runs
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.int8.byte_tiles import CHUNK, Kind
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD

_BAND_SHARE = 1 / 16
"""Of the second-level cache, for lines that a thread lays out together: they stay there with the
weights, which are read again for each such band."""
CACHE_LINE = 64

(
    HEIGHT,  # of the input
    WIDTH,
    CHANNELS,
    DOWN,  # rows of the kernel
    ACROSS,  # columns of it
    TOP,  # padding above
    LEFT,  # padding to the left
    OUT_HEIGHT,
    OUT_WIDTH,
    STRIDE_DOWN,
    STRIDE_ACROSS,
    DILATION,  # of rows of taps
    COLUMNS,  # of the weights
    SHIFT,  # 128 for an input of int8, which becomes uint8
    KIND,  # `byte_tiles.Kind` of the result
    LOW,  # its least level
    HIGH,  # its largest level
    PITCH,  # bytes from line to line
    BAND,  # output lines that are computed together
    SHARES,  # into how many shares threads divide the columns
    THREAD_BYTES,  # memory of a thread; 0 if lines are read in the input
    BLOCK,  # steps of AMX whose weights stay in the first-level cache
    GROUP_CHANNELS,  # input channels of a group
    GROUP_OUTPUTS,  # columns of a group
    COPY,  # address of a kernel that copies runs, or 0
) = range(25)
"""Places of the table of `convolve_lines`."""


class ChannelGroups(NamedTuple):
    """How a convolution is divided into products.

    Attributes:
        number: How many.
        channels: That each reads.
        outputs: Columns of its weights; they fill panels of their own.
    """

    number: int
    channels: int
    outputs: int

    @property
    def panels(self) -> int:
        """Of all weights."""
        return self.number * -(-self.outputs // PANEL)


def line_table(
    window: Window,
    shape: tuple[int, ...],
    groups: ChannelGroups,
    shift: int,
    levels: Any,
    policy: PrecisionPolicy,
    block: int,
) -> Array:
    """The table of `convolve_lines`.

    Args:
        window: One that `has_runs`.
        shape: Of the input.
        groups: How its channels are divided.
        shift: What makes the input uint8.
        levels: Type of the levels that sums become; ``None`` if floats.
        policy: What may be used.
        block: Steps of AMX whose weights stay in the first-level cache.
    """
    images, channels, (_, height, width) = shape[0], groups.channels, window.size
    columns = groups.number * groups.outputs
    (_, down, across), (_, out_height, out_width) = window.kernel, window.out
    (_, stride, step), dilation = window.stride, window.dilation[1]
    as_it_lies = not (any(window.begin) or any(window.end) or shift or groups.number > 1)
    as_it_lies = as_it_lies and across * channels % QUAD == 0 and not policy.level.tiles
    pitch = width if as_it_lies else (out_width - 1) * step + across
    pitch *= channels
    under = (down - 1) * dilation + 1
    band = (policy.machine.l2_bytes(_BAND_SHARE) // pitch - under) // stride + 1
    band = evaluated(min, highest(band, 1), out_height)
    laid = ((band - 1) * stride + under) * pitch + (CHUNK + across) * channels + QUAD + CACHE_LINE
    weights, pixels = window.taps * channels * columns, images * window.pixels
    lines = images * out_height
    moved = images * height * width * shape[-1] + pixels * columns
    shares = evaluated(_shares, lines, groups.panels, policy.threads, weights, moved, window.taps)
    kind = Kind.FLOATS if levels is None else Kind.LEVELS
    limits = np.iinfo(np.int32 if levels is None else levels)
    sizes = (height, width, shape[-1], down, across, *window.begin[1:], out_height, out_width)
    ends = (columns, shift, kind, limits.min, limits.max)
    rest = (pitch, band, shares, 0 if as_it_lies else laid, block)
    ends_of_group = (channels, groups.outputs, addresses(policy.level).get("copy_runs", 0))
    return integers((*sizes, stride, step, dilation, *ends, *rest, *ends_of_group))


def _shares(lines: int, panels: int, threads: int, weights: int, moved: int, taps: int) -> int:
    """Shares across of a grid of lines and panels.

    Args:
        lines: Of the result, of all images.
        panels: Of weights.
        threads: How many share them.
        weights: Bytes of all weights.
        moved: Bytes of the images and of the result.
        taps: Of a window.
    """
    return shares_across(lines, panels, threads, weights / moved, copy_cost=1 / taps)


@loop
def lay_lines(
    x: Any, blank: Any, band: Any, p: Any, image: int, first: int, count: int, group: int
) -> None:
    """The lines under some output lines, as uint8, with padding; channels of one group.

    Args:
        x: The image, flat.
        blank: What padding is, as uint8.
        band: Gets the lines.
        p: The table.
        image: The image's number.
        first: The first output line.
        count: How many.
        group: The group of channels.
    """
    channels, flipped = p[GROUP_CHANNELS], np.uint8(p[SHIFT])  # 128 turns the highest bit over
    pitch, before = p[PITCH], p[LEFT] * channels
    run = min(p[WIDTH] * channels, pitch - before)  # no window may cover the last columns
    for i in range((count - 1) * p[STRIDE_DOWN] + (p[DOWN] - 1) * p[DILATION] + 1):
        target = band[i * pitch : (i + 1) * pitch]
        at = first * p[STRIDE_DOWN] + i - p[TOP]
        if at < 0 or at >= p[HEIGHT]:
            target[:] = blank
            continue
        start = (image * p[HEIGHT] + at) * p[WIDTH] * p[CHANNELS] + group * channels
        inside = target[before : before + run]
        target[:before] = blank
        if channels == p[CHANNELS]:
            source = x[start : start + run]
            for k in range(inside.size):
                inside[k] = np.uint8(source[k]) ^ flipped
        else:
            _copy_group(x, start, inside, p)
        target[before + run :] = blank


@loop
def _copy_group(x: Any, start: int, target: Any, p: Any) -> None:
    """The channels of one group of neighbouring pixels, as uint8."""
    channels, pitch, flipped = p[GROUP_CHANNELS], p[CHANNELS], np.uint8(p[SHIFT])
    pixels = target.size // channels
    if p[COPY]:
        places = address(x) + start, pitch, address(target), channels
        call_runs(p[COPY], (*places, pixels, channels, p[SHIFT]))
        return
    for pixel in range(pixels):
        source = x[start + pixel * pitch : start + pixel * pitch + channels]
        copied = target[pixel * channels : (pixel + 1) * channels]
        for k in range(copied.size):
            copied[k] = np.uint8(source[k]) ^ flipped
