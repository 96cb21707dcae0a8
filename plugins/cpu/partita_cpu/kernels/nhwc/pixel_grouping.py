"""Convolutions of few output channels: neighbouring pixels are computed as one with more outputs.

A vector has 8 or 16 outputs whatever a convolution needs, and a tile of AMX 32. Where it needs
fewer, `count` pixels of a row become one pixel of ``count * outputs`` outputs. Its window is that
of all of them, and each output's weights are zero where only other pixels' windows are. In memory
both are the same. An infinity or NaN makes NaN of all pixels that are computed with one that reads
it, and of no other (docs/adr/0021-cpu-channels-last.md says why that is left so).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita.lowering import Array, Builder
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.shapes.symbolic_size import Size, assumed, evaluated, has_varied, settled
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles, tile_columns
from partita_cpu.gemm.blocking.left_matrix import LONG_LINE
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import LinearStep, emit_product
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.llvm.levels import Level

_GAIN = 1.05
"""How much longer each pixel alone must take for it to be worth it."""

_ROW = 0.2
"""What a tap of a row takes beside its vectors, as parts of one."""

_COPIED = 1.1
"""How much longer it takes where rows are not whole groups, so that the result is copied."""


def pixels_per_group(images: Images, level: Level, arithmetic: Arithmetic) -> int:
    """How many pixels are computed together: what makes tiles do the least for each, or 1.

    Args:
        images: The convolution.
        level: The instruction set.
        arithmetic: What products are computed in. Where AMX computes them, half a tile takes as
            long as a whole one.
    """
    across, stride, outputs = images.kernel[1], images.stride[1], images.outputs
    columns = tile_columns(level)
    if images.groups > 1 or across == 1 or images.dilation[1] > 1 or 2 * outputs > columns:
        return 1
    unit = columns if on_tiles(level, arithmetic) else level.lanes
    most = columns // max(outputs, 1)
    sizes = outputs, across, stride, unit
    width = images.out_width
    if isinstance(width, Size):
        # Weights are packed for each number: not one for each remainder of the width.
        count = evaluated(_cheapest_of_any, width // LONG_LINE, most, *sizes)
        return settled(assumed(count))
    return _cheapest(width, most, *sizes)


def _cheapest(width: int, most: int, *sizes: Any) -> int:
    """How many pixels of a line of so many take the least time together.

    Args:
        width: Pixels of a line.
        most: How many there may be.
        sizes: As `_group_cost` takes them.
    """

    def lines(count: int) -> float:
        return -(-width // count) * (_COPIED if width % count else 1.0)

    return _least(min(most, width // LONG_LINE), lines, sizes)


def _cheapest_of_any(long_lines: int, most: int, *sizes: Any) -> int:
    """The same for all widths of so many long lines, whatever a number of pixels leaves over."""

    def lines(count: int) -> float:
        return _COPIED / count if count > 1 else 1.0

    return _least(min(most, long_lines), lines, sizes)


def _least(most: int, lines: Callable[[int], float], sizes: Sequence[Any]) -> int:
    """The number of pixels of up to `most` for which `lines` groups take the least time, or 1."""
    if most < 2:
        return 1

    def cost(count: int) -> float:
        return lines(count) * _group_cost(count, *sizes)

    best = min(range(1, most + 1), key=cost)
    return best if cost(best) * _GAIN <= cost(1) else 1


def _group_cost(count: int, outputs: int, across: int, stride: int, unit: int) -> float:
    """Time for so many pixels together: vectors for each tap, and what they share."""
    return (across + (count - 1) * stride) * (_ROW + -(-count * outputs // unit))


def joined_images(images: Images, count: int) -> Images:
    """The convolution with so many pixels as one."""
    stride = images.stride[1]
    across = images.kernel[1] + (count - 1) * stride
    width = -(-images.out_width // count)
    reach = (width - 1) * count * stride + across
    missing = reach - images.width - images.begin[1]
    return replace(
        images,
        outputs=images.outputs * count,
        kernel=(images.kernel[0], across),
        stride=(images.stride[0], stride * count),
        end=(images.end[0], max(images.end[1], missing)),
        out_width=width,
    )


def joined_weights(w: Array, count: int, stride: int) -> Array:
    """Weights (outputs, channels, down, across) of one pixel as those of so many."""
    outputs, channels, down, across = w.shape
    shape = (count, outputs, channels, down, across + (count - 1) * stride)
    wide = np.zeros(shape, w.dtype)
    for pixel in range(count):
        wide[pixel, ..., pixel * stride : pixel * stride + across] = w
    return wide.reshape(count * outputs, channels, down, shape[-1])


def emit_grouped_pixels(b: Builder, policy: PrecisionPolicy, step: LinearStep) -> bool:
    """Records what `emit_product` would, if it is worth it to compute pixels together."""
    images, op, y, storage = step.images, step.op, step.y, step.storage
    count = pixels_per_group(images, policy.level, policy.arithmetic)
    whole = not has_varied([images.out_width]) and images.out_width % count == 0
    alone = storage.y_pitch in (0, images.outputs) and not (storage.scaled or storage.planar)
    if count == 1 or not alone or (op.residual is not None and not whole):
        return False
    stride = images.stride[1]
    wide = joined_images(images, count)
    outputs, *inner, across = op.w.shape
    form = Form(op.w.dtype, (count * outputs, *inner, across + (count - 1) * stride))
    weights = b.prepack(
        op.w,
        ("grouped pixels", count, stride),
        lambda a: joined_weights(a, count, stride),
        form=form,
    )
    bias = op.bias
    if bias is not None:
        bias = b.prepack(bias, ("grouped pixels", count), lambda a: np.tile(a, count))
    kept = replace(storage, y_pitch=wide.outputs)
    shape = (images.batch, images.out_height, images.out_width, images.outputs)
    padded = (*shape[:2], wide.out_width * count, images.outputs)
    into = y if whole else b.empty(padded, y.dtype)
    op = op._replace(w=weights, bias=bias)
    emit_product(b, policy, step._replace(images=wide, op=op, y=into, storage=kept))
    if not whole:
        copy_box(b, Box(into, strides_of(padded)), Box(y, strides_of(shape)), shape)
    return True
