"""Transposed convolutions with stride equal to the kernel: each pixel becomes a block of pixels."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.windows import Window
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.fused_activation import needs_pass
from partita_cpu.gemm.product_steps import LinearOp, LinearStep, emit_product
from partita_cpu.kernels.linalg.epilogue import finish
from partita_cpu.kernels.nhwc.placement import HALF, Place, choice_of
from partita_cpu.nhwc.pixel_moves import Blocks, spread_blocks

NARROW = 8
"""Up to so many outputs an activation that needs a pass gets one of its own."""


def touches(window: Window) -> bool:
    """Whether windows lie side by side and cover the output."""
    sizes = zip(window.out, window.kernel, strict=True)
    covered = window.size == tuple(count * taps for count, taps in sizes)
    taps = zip(window.kernel, window.dilation, strict=True)
    dense = all(count == 1 or step == 1 for count, step in taps)
    return covered and dense and window.stride == window.kernel and not any(window.begin)


def emit_blocks(b: Builder, window: Window, place: Place, op: LinearOp, y: Operand) -> None:
    """Records one product, whose rows are blocks, and the copies of their pixels to their places.

    Args:
        b: The builder.
        window: One that touches its neighbours; of volumes that are seen as tall images, too.
        place: Input pixels, and the channel of y that the first result is written to.
        op: Weights (inputs, outputs, [depth,] height, width), a bias and an activation.
        y: Output pixels, which are at least one.
    """
    w, outputs, activation = op.w, op.w.shape[1], op.activation
    deep, down, across = window.kernel
    pixels, places = math.prod(place.x.shape[:3]), deep * down * across
    form = Form(w.dtype, (w.shape[0], places * outputs))
    matrix = b.prepack(w, "blocks", _block_matrix, form=form)
    bias = op.bias
    if bias is not None:
        bias = b.prepack(bias, ("repeated", places), partial(np.tile, reps=places))
    in_order = deep == down == 1 and place.y is None
    blocks = y if in_order else b.empty((pixels, places * outputs), y.dtype)
    images = Images.matrix(pixels, w.shape[0], places * outputs)
    # In tiles most of which do not exist, activations that take long take longer.
    narrow = places * outputs <= NARROW and needs_pass(activation)
    product = LinearOp(matrix, bias, None, None if narrow else activation)
    halves = place.x.dtype == HALF, y.dtype == HALF
    storage = Storage(*halves, x_pitch=place.x.shape[3], x_first=place.first)
    step = LinearStep(images, place.x, product, blocks, storage)
    emit_product(b, choice_of(b), step)
    height, width = window.out[1:]
    if narrow:
        finish(b, blocks, width * places * outputs, None, 0, None, activation)
    if not in_order:
        sizes = Blocks(height, width, deep, down, across, outputs, y.shape[3], place.into)
        b.call(spread_blocks, b.flat(blocks), b.flat(y), sizes, exec_type="reorder")


def _block_matrix(w: Array) -> Array:
    """(inputs, outputs, places of a block) as (inputs, places x outputs)."""
    parts = w.reshape(*w.shape[:2], -1).swapaxes(1, 2)
    return np.ascontiguousarray(parts).reshape(w.shape[0], -1)
