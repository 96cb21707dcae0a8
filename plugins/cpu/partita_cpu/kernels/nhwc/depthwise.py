"""Depthwise convolution of images with channels last: chooses the kernel for a window."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.windows import Window, count_places
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.fused_activation import activation_kernel, epilogue_of, has_kernel, needs_pass
from partita_cpu.gemm.product_steps import LinearOp
from partita_cpu.gemm.tile_kernels import window_kernels
from partita_cpu.kernels.nhwc.placement import HALF, Place, choice_of
from partita_cpu.llvm.images.depthwise_pixels import Products, products_of
from partita_cpu.nhwc.channel_slice import ChannelSlice
from partita_cpu.nhwc.depthwise_direct import (
    Depthwise,
    activate_images,
    channel_shares,
    depthwise_images,
    depthwise_kernels,
    pack_row,
    pack_taps,
    places,
    takes,
)
from partita_cpu.nhwc.depthwise_row_buffer import (
    RowBuffer,
    convolve_rows,
    fits,
    padded_width,
    ring_blocks,
    row_kernels,
    thread_bytes,
)
from partita_cpu.nhwc.window import CONVOLVE, SlidingWindow, slide
from partita_cpu.threads.thread_memory import room_of, thread_memory


def emit_depthwise(b: Builder, window: Window, place: Place, op: LinearOp, y: Operand) -> None:
    """Records a depthwise convolution, finished, by the kernels that suit the window best.

    Args:
        b: Records it.
        window: The window.
        place: Input pixels, and the channel of y that the first result is written to.
        op: Weights, bias and activation.
        y: Output pixels.
    """
    channels, policy, activation = place.channels, choice_of(b), op.activation
    if takes(window) and (not needs_pass(activation) or has_kernel(activation)):
        _emit_direct(b, window, place, op, y)
        return
    if not needs_pass(activation) and fits(window, policy.machine, y.dtype == HALF):
        _emit_rows(b, window, place, op, y)
        return
    if needs_pass(activation) and y.dtype == HALF:
        emit_depthwise(b, window, place, op._replace(activation=None), y)
        kernel = activation_kernel(policy.level, activation, True)
        b.call(activate_images, b.flat(y), kernel, channels, y.shape[3], place.into)
        return
    weights = b.prepack(op.w, "taps first", _taps_first)
    none = b.constant(np.zeros(channels, np.float32))
    bias = none if op.bias is None else b.flat(op.bias)
    emit_slide(b, window, place, op._replace(w=weights, bias=bias), y, CONVOLVE)


def _emit_direct(b: Builder, window: Window, place: Place, op: LinearOp, y: Operand) -> None:
    shares = channel_shares(window, y.shape[0], place.channels, choice_of(b).threads)
    b.call(
        depthwise_images,
        b.flat(place.x),
        depthwise_of(b, window, place, op, place.channels),
        b.flat(y),
        y.shape[3],
        place.into,
        shares,
        activation_kernel(choice_of(b).level, op.activation, y.dtype == HALF),
        work=y.size * window.taps,
        exec_type=Arithmetic.F32.exec_type(choice_of(b).level),
    )


def depthwise_of(
    b: Builder, window: Window, place: Place, op: LinearOp, stored: int, far: bool = True
) -> Depthwise:
    """A depthwise convolution as kernels take it.

    Args:
        b: Records what it needs.
        window: The window.
        place: Input pixels, and which of their channels are read.
        op: Weights, bias and activation, which has bounds and a gate only.
        stored: Channels that are written.
        far: Whether images may lie beyond the second-level cache, and are prefetched.
    """
    level, half = choice_of(b).level, place.x.dtype == HALF
    lanes = level.lanes
    table = places(window, level, place.channels, place.x.shape[3], place.first, half, far)
    known = op.w.const
    finite = half and known is not None and not choice_of(b).rounds_to_infinity(known)
    products = products_of(window.kernel[2], half, level, finite)
    key = ("row taps", lanes, stored, products)
    finish = epilogue_of(op.activation, False)
    return Depthwise(
        b.prepack(op.w, key, lambda array: pack_taps(array, lanes, stored, products)),
        _row(b, op.bias, lanes, stored, half),
        b.constant(depthwise_kernels(level, window.kernel[2], window.stride[2], products)),
        b.constant(table),
        finish.low,
        finish.high,
        finish.gate,
    )


def _row(
    b: Builder, bias: Operand | None, lanes: int, channels: int, half: bool = False
) -> Operand:
    """A bias as vectors; `half` for images in bfloat16 that are read where they lie."""
    if bias is None:
        return b.constant(pack_row(None, lanes, channels))
    key = ("row", lanes, channels, half)
    return b.prepack(bias, key, lambda array: pack_row(array, lanes, channels, half))


def _emit_rows(b: Builder, window: Window, place: Place, op: LinearOp, y: Operand) -> None:
    policy, channels = choice_of(b), place.channels
    lanes = policy.level.lanes
    blocks = ring_blocks(window, channels, policy.machine)
    room = room_of(thread_bytes(window, blocks, lanes), policy.threads)
    finish = epilogue_of(op.activation, False)
    rows = RowBuffer(
        b.prepack(
            op.w, ("row taps", lanes, 0, Products.FLOATS), lambda array: pack_taps(array, lanes)
        ),
        _row(b, op.bias, lanes, channels),
        b.constant(row_kernels(policy.level, y.dtype == HALF)),
        b.constant(window.table),
        lanes,
        padded_width(window),
        blocks,
        room,
        finish.low,
        finish.high,
        finish.gate,
    )
    b.call(
        convolve_rows,
        b.flat(place.x),
        rows,
        b.flat(y),
        thread_memory(b, policy.threads, room),
        channel_slice(place, y),
        work=y.size * window.taps,
        exec_type=Arithmetic.F32.exec_type(policy.level),
    )


def channel_slice(place: Place, y: Operand) -> ChannelSlice:
    """Which channels kernels read and write."""
    return ChannelSlice(place.channels, place.x.shape[3], place.first, y.shape[3], place.into)


def _taps_first(w: Array) -> Array:
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T).reshape(-1)


def emit_slide(
    b: Builder,
    window: Window,
    place: Place,
    op: LinearOp,
    y: Operand,
    kind: int,
    counts: tuple[Operand, Operand] | None = None,
) -> None:
    """Records a window that slides over an image; see `nhwc.window.slide`.

    Args:
        b: Records it.
        window: The window.
        place: Input pixels, and the channel of y that the first result is written to.
        op: Weights, bias and activation; weights are those of `SlidingWindow`, and read by
            `CONVOLVE` alone.
        y: Output pixels.
        kind: What becomes of the elements under a window, of `nhwc.window`.
        counts: How many elements are under it, for each place down and across, for means.
    """
    policy = choice_of(b)
    none = b.constant(np.ones(1, np.int64))
    down, across = counts or (none, none)
    name = ("convolve", "max", "sum")[kind]
    sliding = SlidingWindow(
        op.w,
        op.w if op.bias is None else op.bias,
        b.constant(window_kernels(policy.level, name, y.dtype == HALF)),
        b.constant(window.table),
        down,
        across,
        kind,
    )
    b.call(
        slide,
        b.flat(place.x),
        sliding,
        b.flat(y),
        channel_slice(place, y),
        epilogue_of(op.activation, False),
        work=y.size * window.taps,
        exec_type=Arithmetic.F32.exec_type(policy.level),
    )


def counts_of(b: Builder, window: Window, include_pad: bool) -> tuple[Operand, Operand]:
    """How many places windows average over, at least 1: for each row of them, and each column."""
    down, across = (
        b.table((window.out[axis],), np.int64, _at_least_one, include_pad, *window.along(axis))
        for axis in (1, 2)
    )
    return down, across


def _at_least_one(*args: Any) -> Array:
    return np.maximum(count_places(*args), 1)
