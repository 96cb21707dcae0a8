"""8-bit depthwise convolutions by quads of taps, on copied lines of the image.

Lines are padded as those of `convolution_lines`, so that all windows are alike. Where windows move
by one pixel, some neighbours are computed as one pixel of more channels, so that vectors are full.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.windows import Window
from partita.lowering.shapes.symbolic_size import settled
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.tile_kernels import quad_window_kernels
from partita_cpu.jit.intrinsics.address_call import address, call_depthwise_quads
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.int8.convolution_lines import has_runs
from partita_cpu.kernels.int8.line_table import (
    ACROSS,
    BAND,
    CHANNELS,
    DILATION,
    DOWN,
    HEIGHT,
    HIGH,
    LOW,
    OUT_HEIGHT,
    OUT_WIDTH,
    PITCH,
    SHIFT,
    STRIDE_ACROSS,
    STRIDE_DOWN,
    THREAD_BYTES,
    WIDTH,
    ChannelGroups,
    lay_lines,
    line_table,
)
from partita_cpu.kernels.int8.product import ByteOperands
from partita_cpu.llvm.images.depthwise_quads import BLOCK, ORDER, PIXELS, ROWS, takes_quads

_LINE = 64
_MOST = PIXELS[-1]
_NEIGHBOURS = 8
"""Pixels that are computed as one, at most."""


class DepthwiseTaps(NamedTuple):
    """A depthwise convolution of levels; arrays as `depthwise_quads.PARAMETERS` has them.

    Attributes:
        w: Weights.
        bias: Less what the level of 0 adds to the sums.
        factors: From sums to levels.
        zero: The level of x that is 0.
        level: That of y.
    """

    w: KernelArray
    bias: KernelArray
    factors: KernelArray
    zero: KernelArray
    level: KernelArray


@loop
def slide_lines(
    x: Any,
    taps: DepthwiseTaps,
    y: Any,
    memory: Any,
    kernels: Any,
    p: Any,
    neighbours: int,
    tid: int,
    nt: int,
) -> None:
    """The convolution, quantized again; channels last.

    Args:
        x: Input (N, H, W, channels), flat; int8 or uint8.
        taps: What it is multiplied by.
        y: Output, flat.
        memory: Bytes, as many for each thread as the table says.
        kernels: `tile_kernels.quad_window_kernels`.
        p: The table of `convolve_lines`.
        neighbours: Output pixels that are computed as one.
        tid: This thread.
        nt: All threads; they share lines.
    """
    threads = min(nt, memory.size // p[THREAD_BYTES]) if p[THREAD_BYTES] else nt
    if tid >= threads:
        return
    lines = x.size // (p[HEIGHT] * p[WIDTH] * p[CHANNELS]) * p[OUT_HEIGHT]
    line, end = lines * tid // threads, lines * (tid + 1) // threads
    start = tid * p[THREAD_BYTES]
    start += -(address(memory) + start) % _LINE
    band = memory[start : (tid + 1) * p[THREAD_BYTES]]
    while line < end:
        image = line // p[OUT_HEIGHT]
        first = line - image * p[OUT_HEIGHT]
        count = min(min(end - line, p[OUT_HEIGHT] - first), p[BAND])
        source = address(x) + (image * p[HEIGHT] + first * p[STRIDE_DOWN]) * p[PITCH]
        if p[THREAD_BYTES]:
            blank = np.uint8(np.int32(taps.zero[0]) + p[SHIFT])
            lay_lines(x, blank, band, p, image, first, count, 0)
            source = address(band)
        for row in range(count):
            at = source + row * p[STRIDE_DOWN] * p[PITCH]
            _slide_line(at, taps, y, kernels, p, neighbours, line + row)
        line += count


@loop
def _slide_line(
    source: int, taps: DepthwiseTaps, y: Any, kernels: Any, p: Any, neighbours: int, line: int
) -> None:
    """One output line, whose first tap lies at an address.

    Args:
        source: The address.
        taps: Weights, and what sums become.
        y: Output, flat.
        kernels: Addresses of kernels, by pixels of a call.
        p: The table.
        neighbours: Pixels that one vector holds.
        line: The output line.
    """
    width, channels, level = p[OUT_WIDTH], p[CHANNELS], np.int64(taps.level[0])
    column = 0
    while column < width:
        left = (width - column) // neighbours
        pixels = _MOST if left >= _MOST else 2 if left >= 2 else 1
        if left == 0:
            column = width - neighbours  # some are computed again
        call_depthwise_quads(
            kernels[pixels],
            (
                source + column * p[STRIDE_ACROSS] * channels,
                p[DILATION] * p[PITCH],
                channels,
                neighbours * p[STRIDE_ACROSS] * channels,
                p[DOWN],
                p[ACROSS],
                address(taps.w),
                neighbours * channels,
                address(taps.bias),
                address(taps.factors),
                address(y) + (line * width + column) * channels,
                neighbours * channels,
                np.float32(p[LOW] - level),
                np.float32(p[HIGH] - level),
                level,
            ),
        )
        column += pixels * neighbours


def takes_depthwise_lines(
    window: Window, w: Operand, zeros: Array, policy: PrecisionPolicy
) -> bool:
    """Whether there are kernels for a depthwise convolution.

    Args:
        window: The window, in two dimensions.
        w: Weights, a constant.
        zeros: Their levels of 0.
        policy: What may be used.
    """
    plain = w.dtype == np.int8 and not zeros.any()
    return plain and takes_quads(policy.level) and has_runs(window)


def emit_depthwise_lines(
    b: Builder,
    policy: PrecisionPolicy,
    window: Window,
    operands: ByteOperands,
    rest: tuple[Array, Array, Operand],
) -> Operand:
    """Records a depthwise convolution that `takes_depthwise_lines`.

    Args:
        b: Records it.
        policy: What may be used.
        window: The window, in two dimensions.
        operands: Images (n, height, width, channels), their zero point, and weights.
        rest: Bias in int32 and factors in float32, one per channel, and the level of the result
            that is 0.
    """
    x, w, (bias, factors, level) = operands.x, operands.w, rest
    channels, zero = x.shape[3], operands.zero_level(b)
    y = b.empty((x.shape[0], *window.out_shape, channels), level.dtype)
    neighbours = neighbours_of(window, channels)
    groups = ChannelGroups(1, channels, channels)
    table = line_table(window, x.shape, groups, operands.shift, level.dtype, policy, 1)
    offset = int(b.value(zero).reshape(-1)[0]) + operands.shift
    totals = b.value(w, anywhere=True).reshape(channels, -1).sum(1, dtype=np.int32)
    terms = np.tile((bias - offset * totals).astype(np.int32), neighbours)
    pack = partial(quad_weights, times=neighbours)
    b.call(
        slide_lines,
        b.flat(x),
        DepthwiseTaps(
            b.prepack(w, ("quads of taps", neighbours), pack),
            b.constant(in_quad_order(terms)),
            b.constant(in_quad_order(np.tile(factors, neighbours))),
            zero,
            b.flat(level),
        ),
        b.flat(y),
        b.empty((policy.threads * int(table[THREAD_BYTES]),), np.uint8),
        b.constant(quad_window_kernels(policy.level)),
        b.constant(table),
        neighbours,
        work=y.size * window.taps,
    )
    return y


def neighbours_of(window: Window, channels: int) -> int:
    """How many output pixels are best computed as one: fewest vectors for each, then fewest."""
    width, most = window.out[2], 1
    if window.stride[2] == 1:
        most = _NEIGHBOURS if width >= _NEIGHBOURS else settled(width)
    return min(range(1, most + 1), key=lambda count: (-(-count * channels // BLOCK) / count, count))


def quad_weights(w: Array, times: int) -> Array:
    """Weights (channels, 1, down, across) of int8 as `depthwise_quads` takes them, flat.

    Args:
        w: The weights.
        times: How often they are repeated.
    """
    repeated = np.tile(w[:, 0], (times, 1, 1))
    channels, down, across = repeated.shape
    blocks, fours = -(-channels // BLOCK), -(-down // ROWS)
    full = np.zeros((blocks * BLOCK, fours * ROWS, across), np.int8)
    full[:channels, :down] = repeated
    parts = full.reshape(blocks, BLOCK, fours, ROWS, across)[:, ORDER]
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 1, 3)).reshape(-1)


def in_quad_order(values: Array) -> Array:
    """Numbers of channels in the order of `quad_weights`, filled up with zeros."""
    full = np.zeros((-(-values.size // BLOCK), BLOCK), values.dtype)
    full.reshape(-1)[: values.size] = values
    return np.ascontiguousarray(full[:, ORDER]).reshape(-1)
