"""Depthwise convolution of images with channels last: which kernels suit a window."""

from __future__ import annotations

import numpy as np

from partita.lowering import Activation, Array, Builder, Operand
from partita.lowering.geometry.windows import Window
from partita_cpu.gemm.product_steps import bounds_of, split_gate
from partita_cpu.gemm.tile_kernels import Arithmetic, window_kernels
from partita_cpu.kernels.nhwc.placement import HALF, Place, choice_of
from partita_cpu.nhwc.depthwise_direct import (
    pack_row,
    pack_taps,
    places,
    takes,
    weigh_images,
    weigh_kernels,
)
from partita_cpu.nhwc.depthwise_row_buffer import (
    convolve_rows,
    fits,
    padded_width,
    row_kernels,
    thread_bytes,
)
from partita_cpu.nhwc.window import WEIGH, slide


def emit_depthwise(
    b: Builder,
    window: Window,
    place: Place,
    w: Operand,
    bias: Operand | None,
    y: Operand,
    activation: Activation | None,
) -> None:
    """Records a depthwise convolution, finished, by the kernels that suit the window best."""
    channels, choice = place.channels, choice_of(b)
    low, high, act = bounds_of(activation)
    gate, act = split_gate(act)
    if not act.code and takes(window):
        _emit_weighing(b, window, place, w, bias, y, (low, high, gate))
        return
    if not act.code and fits(window, channels, choice.level, y.dtype == HALF):
        _emit_rows(b, window, place, w, bias, y, (low, high, gate))
        return
    weights = b.prepack(w, "taps first", _taps_first)
    offset = b.constant(np.zeros(channels, np.float32)) if bias is None else b.flat(bias)
    emit_slide(b, window, place, weights, offset, y, WEIGH, activation)


def _emit_weighing(
    b: Builder,
    window: Window,
    place: Place,
    w: Operand,
    bias: Operand | None,
    y: Operand,
    finish: tuple[float, float, int],
) -> None:
    image = weighing(b, window, place, w, bias, place.channels)
    b.call(
        weigh_images,
        *image[:3],
        b.flat(y),
        *image[3:],
        y.shape[3],
        place.into,
        *finish,
        work=y.size * window.taps,
        exec_type=Arithmetic.F32.exec_type(choice_of(b).level),
    )


def weighing(
    b: Builder, window: Window, place: Place, w: Operand, bias: Operand | None, stored: int
) -> tuple[Operand, ...]:
    """Input, weights, bias, kernels and table for `native.weighing`; writes `stored` channels."""
    level, half = choice_of(b).level, place.x.dtype == HALF
    lanes = level.lanes
    table = places(window, level, place.channels, place.x.shape[3], place.first, half)
    key = ("row taps", lanes, stored)
    return (
        b.flat(place.x),
        b.prepack(w, key, lambda array: pack_taps(array, lanes, stored)),
        _row(b, bias, lanes, stored),
        b.constant(weigh_kernels(level, window.kernel[2], window.stride[2], half)),
        b.constant(table),
    )


def _row(b: Builder, bias: Operand | None, lanes: int, channels: int) -> Operand:
    """A bias as vectors."""
    if bias is None:
        return b.constant(pack_row(None, lanes, channels))
    key = ("row", lanes, channels)
    return b.prepack(bias, key, lambda array: pack_row(array, lanes, channels))


def _emit_rows(
    b: Builder,
    window: Window,
    place: Place,
    w: Operand,
    bias: Operand | None,
    y: Operand,
    finish: tuple[float, float, int],
) -> None:
    choice, channels = choice_of(b), place.channels
    lanes = choice.level.lanes
    room = thread_bytes(window, channels, lanes)
    offset = _row(b, bias, lanes, channels)
    b.call(
        convolve_rows,
        b.flat(place.x),
        b.prepack(w, ("row taps", lanes, 0), lambda array: pack_taps(array, lanes)),
        offset,
        b.flat(y),
        b.empty((choice.threads * room,), "uint8"),
        b.constant(row_kernels(choice.level, y.dtype == HALF)),
        b.constant(window.table),
        lanes,
        channels,
        place.x.shape[3],
        place.first,
        y.shape[3],
        place.into,
        padded_width(window),
        room,
        *finish,
        work=y.size * window.taps,
        exec_type=Arithmetic.F32.exec_type(choice.level),
    )


def _taps_first(w: Array) -> Array:
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T).reshape(-1)


def emit_slide(
    b: Builder,
    window: Window,
    place: Place,
    w: Operand,
    bias: Operand,
    y: Operand,
    kind: int,
    activation: Activation | None = None,
    counts: tuple[Array, Array] | None = None,
) -> None:
    """Records a window that slides over an image; see `native.sliding.slide`."""
    choice = choice_of(b)
    low, high, act = bounds_of(activation)
    gate, act = split_gate(act)
    none = np.ones(1, np.int64)
    down, across = counts or (none, none)
    name = ("weigh", "max", "sum")[kind]
    b.call(
        slide,
        b.flat(place.x),
        w,
        bias,
        b.flat(y),
        b.constant(window_kernels(choice.level, name, y.dtype == HALF)),
        b.constant(window.table),
        b.constant(down),
        b.constant(across),
        place.channels,
        place.x.shape[3],
        place.first,
        y.shape[3],
        place.into,
        kind,
        low,
        high,
        gate,
        int(act.code),
        float(act.alpha),
        float(act.beta),
        work=y.size * window.taps,
        exec_type=Arithmetic.F32.exec_type(choice.level),
    )
