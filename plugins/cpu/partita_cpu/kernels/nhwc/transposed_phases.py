"""Transposed convolutions as several ordinary ones, each of which makes every so manieth pixel.

With a stride of 2, output pixels of even and odd rows and columns meet different taps of the
weights: four phases. The pixels of a phase are those of a convolution with stride 1 over the input,
whose weights are every second tap down and across, in reverse order. Nothing is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.boxes import Box
from partita.lowering.geometry.windows import Window
from partita.lowering.shapes.symbolic_size import settled
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import LinearOp, emit_product
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.nhwc.placement import HALF, Place

_MOST = 64
"""Phases; each is a product of its own."""


@dataclass(frozen=True)
class Phase:
    """Every so manieth output pixel along one dimension.

    Attributes:
        tap: The first of its taps.
        taps: How many it has.
        first: Its first output pixel.
        count: Output pixels, as many as the phase with most of them has.
        begin: Padding of the convolution in front.
        end: Padding behind.
    """

    tap: int
    taps: int
    first: int
    count: int
    begin: int
    end: int


def touches(window: Window) -> bool:
    """Whether windows lie side by side and cover the output."""
    sizes = zip(window.out, window.kernel, strict=True)
    covered = window.size == tuple(count * taps for count, taps in sizes)
    return covered and window.stride == window.kernel and not any(window.begin)


def phases_of(window: Window) -> tuple[Sequence[Phase], Sequence[Phase]] | None:
    """The phases down and across of a transposed convolution of images.

    Args:
        window: As `resolve_transposed` makes it.

    Returns:
        ``None`` if one of them would have no taps, or leave out the edge of the input, or there
        are too many.
    """
    strides, kernels = window.stride, window.kernel
    overlap = all(step <= taps for step, taps in zip(strides, kernels, strict=True))
    few = math.prod(strides) <= _MOST
    if window.rank != 2 or set(window.dilation) != {1} or not (overlap and few):
        return None
    down, across = (_phases(window, axis) for axis in (1, 2))
    if any(min(phase.begin, phase.end) < 0 for phase in (*down, *across)):
        return None
    return down, across


def _phases(window: Window, axis: int) -> list[Phase]:
    stride, kernel, begin = window.stride[axis], window.kernel[axis], window.begin[axis]
    size, pixels = window.size[axis], window.out[axis]
    count, found = -(-size // stride), []
    for first in range(min(stride, size)):
        # Output pixel `first` meets its first tap at this input pixel, and earlier ones after it.
        nearest, tap = (first + begin) // stride, settled((first + begin) % stride)
        taps = -(-(kernel - tap) // stride)
        end = nearest + count - pixels
        found.append(Phase(tap, taps, first, count, taps - 1 - nearest, end))
    return found


def phase_weights(w: Array, down: Phase, across: Phase, stride: tuple[int, int]) -> Array:
    """Weights (inputs, outputs, down, across) of one phase as (outputs, inputs, down, across)."""
    taps = w[:, :, down.tap :: stride[0], across.tap :: stride[1]]
    return np.ascontiguousarray(taps[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))


def emit_phases(
    b: Builder, policy: PrecisionPolicy, window: Window, place: Place, op: LinearOp, y: Operand
) -> None:
    """Records a transposed convolution with channels last.

    Args:
        b: The builder.
        policy: What may be used.
        window: One that has `phases_of`.
        place: Input pixels, and the channel of y that the first result is written to.
        op: Weights (inputs, outputs, down, across), and what is done to sums.
        y: Output pixels, of as many channels as there are outputs or more.
    """
    found = phases_of(window)
    if found is None:
        raise ValueError("the window has no phases")
    down, across = found
    stride = window.stride[1], window.stride[2]
    x, channels, outputs = place.x, place.channels, op.w.shape[1]
    n, height, width, x_pitch = x.shape
    _, out_height, out_width, y_pitch = y.shape
    line = across[0].count * stride[1] * outputs
    for rows in down:
        # Pixels of all phases across lie side by side; whole lines then go to their places.
        lines = b.empty((n, rows.count, line), y.dtype)
        for columns in across:
            images = Images(
                n,
                height,
                width,
                channels,
                outputs,
                kernel=(rows.taps, columns.taps),
                begin=(rows.begin, columns.begin),
                end=(rows.end, columns.end),
                out_height=rows.count,
                out_width=columns.count,
            )
            w = _weights_of(b, op.w, rows, columns, stride)
            pitch, first = stride[1] * outputs, columns.first * outputs
            halves = x.dtype == HALF, y.dtype == HALF
            storage = Storage(*halves, x_pitch, place.first, pitch, first)
            emit_product(b, policy, images, x, op._replace(w=w), lines, storage)
        count = -(-(out_height - rows.first) // stride[0])
        box = n, count, out_width, outputs
        source = rows.count * line, line, outputs, 1
        run = out_width * y_pitch
        target = out_height * run, stride[0] * run, y_pitch, 1
        copy_box(b, Box(lines, source), Box(y, target, rows.first * run + place.into), box)


def _weights_of(
    b: Builder, w: Operand, down: Phase, across: Phase, stride: tuple[int, int]
) -> Operand:
    inputs, outputs, *_ = w.shape
    form = Form(w.dtype, (outputs, inputs, down.taps, across.taps))
    key = "phase", down.tap, across.tap, *stride
    return b.prepack(w, key, lambda a: phase_weights(a, down, across, stride), form=form)
