"""Transposed convolutions as one ordinary convolution for each phase of the output.

With a stride of 2, output pixels of even and odd rows and columns meet different taps of the
weights: four phases. The pixels of a phase are those of a convolution with stride 1 over the input,
whose weights are every second tap down and across, in reverse order. Nothing is computed twice.
Where a vector has room for more outputs, phases across are computed as one pixel of more outputs,
whose weights are zero where only other phases have taps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.boxes import Box
from partita.lowering.geometry.windows import Window
from partita.lowering.shapes.symbolic_size import settled
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import LinearOp, LinearStep, emit_product
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.nhwc.pixel_grouping import emit_grouped_pixels
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


def phase_weights(down: Phase, across: Phase, stride: tuple[int, int], w: Array) -> Array:
    """Weights (inputs, outputs, down, across) of one phase as (outputs, inputs, down, across)."""
    taps = w[:, :, down.tap :: stride[0], across.tap :: stride[1]]
    return np.ascontiguousarray(taps[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))


def are_joined(across: Sequence[Phase], outputs: int, lanes: int) -> bool:
    """Whether vectors compute fewer products if phases across become one pixel.

    Args:
        across: The phases.
        outputs: Of each.
        lanes: Of a vector.
    """

    def vectors(count: int) -> int:
        return -(-count // lanes)

    apart = sum(phase.taps for phase in across) * vectors(outputs)
    return joined_phase(across).taps * vectors(len(across) * outputs) < apart


def joined_phase(across: Sequence[Phase]) -> Phase:
    """The phase whose windows hold those of all at each place."""
    begin = max(phase.begin for phase in across)
    end = max(phase.end for phase in across)
    taps = settled(max(begin - phase.begin + phase.taps for phase in across))
    return Phase(0, taps, 0, across[0].count, begin, end)


def joined_phase_weights(
    down: Phase, across: Sequence[Phase], stride: tuple[int, int], w: Array
) -> Array:
    """The same of all phases across, which are zero at taps that others have."""
    whole = joined_phase(across)
    inputs, outputs = w.shape[:2]
    joined = np.zeros((stride[1], outputs, inputs, down.taps, whole.taps), w.dtype)
    for phase in across:
        first = settled(whole.begin - phase.begin)
        taps = joined[phase.first, ..., first : first + phase.taps]
        taps[...] = phase_weights(down, phase, stride, w)
    return joined.reshape(stride[1] * outputs, *joined.shape[2:])


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
    outputs = op.w.shape[1]
    n, out_height, out_width, y_pitch = y.shape
    width = across[0].count * stride[1]
    in_order = stride[0] == 1 and width == out_width and y_pitch == outputs
    emit = _emit_joined if are_joined(across, outputs, policy.level.lanes) else _emit_apart
    for rows in down:
        # Pixels of all phases across lie side by side; whole lines then go to their places.
        lines = y if in_order else b.empty((n, rows.count, width * outputs), y.dtype)
        emit(b, policy, (rows, across), place, (op, stride), lines)
        if in_order:
            continue
        count = -(-(out_height - rows.first) // stride[0])
        box = n, count, out_width, outputs
        source = rows.count * width * outputs, width * outputs, outputs, 1
        run = out_width * y_pitch
        target = out_height * run, stride[0] * run, y_pitch, 1
        copy_box(b, Box(lines, source), Box(y, target, rows.first * run + place.into), box)


_Lines = tuple[Phase, Sequence[Phase]]
"""One phase down, and all across."""

_Strided = tuple[LinearOp, tuple[int, int]]
"""What is computed, and the strides down and across."""


def _emit_apart(
    b: Builder,
    policy: PrecisionPolicy,
    phases: _Lines,
    place: Place,
    strided: _Strided,
    lines: Operand,
) -> None:
    """Each phase across by a product of its own.

    Args:
        b: The builder.
        policy: Level, machine and threads.
        phases: Phases of rows, and all of columns.
        place: The image.
        strided: The operator, and its strides.
        lines: The result.
    """
    (rows, across), (op, stride) = phases, strided
    outputs, x = op.w.shape[1], place.x
    for columns in across:
        images = _images(place, rows, columns, outputs)
        form = Form(op.w.dtype, (outputs, place.channels, *images.kernel))
        key = "phase", rows.tap, columns.tap, *stride
        w = b.prepack(op.w, key, partial(phase_weights, rows, columns, stride), form=form)
        halves = x.dtype == HALF, lines.dtype == HALF
        pitch, first = stride[1] * outputs, columns.first * outputs
        storage = Storage(*halves, x.shape[3], place.first, pitch, first)
        emit_product(b, policy, LinearStep(images, x, op._replace(w=w), lines, storage))


def _emit_joined(
    b: Builder,
    policy: PrecisionPolicy,
    phases: _Lines,
    place: Place,
    strided: _Strided,
    lines: Operand,
) -> None:
    """All phases across as one pixel of so many times as many outputs.

    Args:
        b: The builder.
        policy: Level, machine and threads.
        phases: Phases of rows, and all of columns.
        place: The image.
        strided: The operator, and its strides.
        lines: The result.
    """
    (rows, across), (op, stride) = phases, strided
    outputs, x = op.w.shape[1], place.x
    images = _images(place, rows, joined_phase(across), stride[1] * outputs)
    form = Form(op.w.dtype, (images.outputs, place.channels, *images.kernel))
    key = "joined phases", rows.tap, across[0].tap, len(across), *stride
    w = b.prepack(op.w, key, partial(joined_phase_weights, rows, across, stride), form=form)
    bias = op.bias
    if bias is not None:
        bias = b.prepack(bias, ("repeated", stride[1]), lambda a: np.tile(a, stride[1]))
    halves = x.dtype == HALF, lines.dtype == HALF
    storage = Storage(*halves, x.shape[3], place.first)
    step = LinearStep(images, x, op._replace(w=w, bias=bias), lines, storage)
    if not emit_grouped_pixels(b, policy, step):
        emit_product(b, policy, step)


def _images(place: Place, rows: Phase, columns: Phase, outputs: int) -> Images:
    n, height, width, _ = place.x.shape
    return Images(
        n,
        height,
        width,
        place.channels,
        outputs,
        kernel=(rows.taps, columns.taps),
        begin=(rows.begin, columns.begin),
        end=(rows.end, columns.end),
        out_height=rows.count,
        out_width=columns.count,
    )
