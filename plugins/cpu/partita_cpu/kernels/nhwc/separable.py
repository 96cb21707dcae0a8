"""A depthwise convolution, the 1x1 convolution that alone reads it, and one before both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.lowering import Activation, Builder, Node, Operand
from partita.lowering.geometry.windows import Window, resolve
from partita_cpu.gemm.blocking import Images, Plan, Source, Storage, plan
from partita_cpu.gemm.product_steps import bounds_of, fitting, product_of, split_gate
from partita_cpu.gemm.tile_fields import BY_COLUMNS, CHUNK, TAPS
from partita_cpu.gemm.tile_kernels import Arithmetic
from partita_cpu.kernels.movement.rearrange import expanded
from partita_cpu.kernels.nhwc.depthwise import weighing
from partita_cpu.kernels.nhwc.operators import conv
from partita_cpu.kernels.nhwc.placement import DOMAIN, HALF, STORED, Place, choice_of
from partita_cpu.kernels.operator_table import kernel
from partita_cpu.nhwc.depthwise_direct import takes
from partita_cpu.nhwc.depthwise_separable import weigh_and_multiply
from partita_cpu.nhwc.inverted_bottleneck import ROWS, bands, expand_weigh_and_multiply


@kernel("SeparableConv", domain=DOMAIN, dtypes=STORED)
def separable_conv(
    b: Builder,
    node: Node,
    x: Operand,
    taps: Operand,
    offset: Operand | None,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
    target: Operand | None = None,
) -> Operand:
    """The nodes in attributes ``first`` and ``second``, as one step where that is better."""
    joint = _joint(b, node, x, taps, w, target)
    if joint is None:
        first, second = node.attrs["first"], node.attrs["second"]
        between = conv(b, first, x, taps, offset)
        return conv(b, second, between, w, bias, residual, target=target)
    return _emit(b, node, joint, weigh_and_multiply, (), 0, taps, offset, bias, residual)


@kernel("BottleneckConv", domain=DOMAIN, dtypes=STORED)
def bottleneck_conv(
    b: Builder,
    node: Node,
    x: Operand,
    wide: Operand,
    shift: Operand | None,
    taps: Operand,
    offset: Operand | None,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
    target: Operand | None = None,
) -> Operand:
    """The nodes in attributes ``wide`` and ``rest``, as one step where that is better."""
    first, rest = node.attrs["wide"], node.attrs["rest"]
    choice, place = choice_of(b), Place.of(first, x, None)
    n, height, width = x.shape[:3]
    images = Images(
        *(n, height, width, place.channels, wide.shape[0]), out_height=height, out_width=width
    )
    arithmetic = choice.wanted(images)
    storage = Storage(x_pitch=x.shape[3], x_first=place.first)
    cut = plan(images, choice.level, arithmetic, choice.threads, storage)
    window = resolve(rest.attrs["first"], x.shape[1:3], taps.shape[2:])
    rows = bands(window, wide.shape[0], choice.threads)
    simple = n == 1 and x.dtype == np.float32 and arithmetic is Arithmetic.F32
    simple &= cut.source is Source.DIRECT and cut.table[CHUNK] >= cut.table[TAPS]
    joint = None
    if simple and rows is not None:
        band = b.empty((choice.threads, rows[ROWS], width, wide.shape[0]), x.dtype)
        joint = _joint(b, rest, band, taps, w, target, (height, width))
    if joint is None or rows is None:
        between = conv(b, first, x, wide, shift)
        return separable_conv(b, rest, between, taps, offset, w, bias, residual, target)
    activation = first.attrs.get("activation")
    _, weights = fitting(b, choice, cut, wide)
    product = product_of(b, choice, cut, weights, shift, None, band, activation)
    before = (b.flat(x), *product.weights[:2], *product.memory[1:], *_bounds(activation))
    before += b.flat(band), b.constant(rows)
    given = (taps, offset, bias, residual)
    return _emit(b, rest, joint, expand_weigh_and_multiply, before, product.work, *given)


@dataclass(frozen=True)
class _Joint:
    """How a depthwise convolution and a product are one step.

    Attributes:
        window: Of the depthwise convolution.
        source: What it reads.
        cut: The plan of the product.
        weights: Its packed weights.
        y: The result.
    """

    window: Window
    source: Place
    cut: Plan
    weights: Operand
    y: Operand


def _joint(
    b: Builder,
    node: Node,
    x: Operand,
    taps: Operand,
    w: Operand,
    target: Operand | None,
    size: tuple[int, int] | None = None,
) -> _Joint | None:
    """The step of both, if that is better; `size` is the image's if x is only a band of it."""
    first, second = node.attrs["first"], node.attrs["second"]
    n, rows, columns = x.shape[:3] if size is None else (1, *size)
    window = resolve(first, (rows, columns), taps.shape[2:])
    source = Place.of(first, x, None)
    place = Place(x, 0, source.channels, target, second.attrs.get("into", 0))
    shape = (n, *window.out_shape, w.shape[0])
    choice = choice_of(b)
    down, across = window.out[1:]
    sizes = n, down, across, source.channels, w.shape[0]
    images = Images(*sizes, out_height=down, out_width=across)
    arithmetic = choice.wanted(images, computed=True)
    half_out = bool(second.attrs.get("half"))
    y_pitch = w.shape[0] if target is None else target.shape[3]
    storage = Storage(False, half_out, y_pitch=y_pitch, y_first=place.into, computed=True)
    cut = plan(images, choice.level, arithmetic, choice.threads, storage)
    narrow = arithmetic is Arithmetic.BF16
    apart = (
        not math.prod(shape)
        or not takes(window)
        or choice.arithmetic is Arithmetic.F16
        or cut.table[BY_COLUMNS]
        or (x.dtype == HALF) != narrow
        or bool(first.attrs.get("half")) != narrow
    )
    if apart:
        return None
    fitted, weights = fitting(b, choice, cut, w)
    if fitted is not cut:
        return None
    return _Joint(window, source, cut, weights, place.output(b, shape, half_out))


def _emit(
    b: Builder,
    node: Node,
    joint: _Joint,
    driver: Callable[..., None],
    before: tuple[Any, ...],
    work: int,
    taps: Operand,
    offset: Operand | None,
    bias: Operand | None,
    residual: Operand | None,
) -> Operand:
    """Records the step; `before` comes in place of the input, and is `work` by itself."""
    first, second = node.attrs["first"], node.attrs["second"]
    cut, y = joint.cut, joint.y
    if residual is not None:
        residual = expanded(b, residual, y.shape)
    image = weighing(b, joint.window, joint.source, taps, offset, cut.padded)
    activation = second.attrs.get("activation")
    product = product_of(b, choice_of(b), cut, joint.weights, bias, residual, y, activation)
    b.call(
        driver,
        *(before or image[:1]),
        *image[1:],
        *_bounds(first.attrs.get("activation")),
        *product.weights,
        *product.memory,
        *product.end,
        work=work + product.work + cut.images.pixels * cut.images.channels * joint.window.taps,
        exec_type=product.exec_type,
    )
    return y


def _bounds(activation: Activation | None) -> tuple[float, float, int]:
    low, high, act = bounds_of(activation)
    return low, high, split_gate(act)[0]
