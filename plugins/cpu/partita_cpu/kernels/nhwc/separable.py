"""Depthwise-separable convolutions and inverted bottlenecks, as one step where that pays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.reached_taps import ways_without_padding
from partita.lowering.geometry.windows import Window, resolve
from partita.lowering.shapes.symbolic_size import integer
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import Plan, plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.product_steps import LinearOp, Product, fitting, product_of
from partita_cpu.gemm.tile_fields import CHUNK, SHARES_ACROSS, TAPS, TILE_ROWS
from partita_cpu.jit import llvm_kernel
from partita_cpu.kernels.movement.rearrange import expanded
from partita_cpu.kernels.nhwc.depthwise import depthwise_of
from partita_cpu.kernels.nhwc.operators import conv
from partita_cpu.kernels.nhwc.placement import DOMAIN, HALF, STORED, Place, choice_of
from partita_cpu.kernels.operator_table import kernel
from partita_cpu.nhwc.depthwise_direct import Depthwise, takes
from partita_cpu.nhwc.depthwise_separable import (
    ImageTarget,
    expanded_depthwise,
    separable_convolution,
    shares_of_channels,
)
from partita_cpu.nhwc.inverted_bottleneck import (
    ROOM,
    ROWS,
    Expansion,
    Pixels,
    bands,
    inverted_bottleneck,
)
from partita_cpu.threads.thread_memory import thread_memory


class _Separable(NamedTuple):
    """Inputs of a depthwise convolution and a 1x1 convolution behind each other."""

    taps: Operand
    offset: Operand | None
    w: Operand
    bias: Operand | None = None
    residual: Operand | None = None
    target: Operand | None = None


@kernel("SeparableConv", domain=DOMAIN, dtypes=STORED)
def separable_conv(b: Builder, node: Node, x: Operand, *inputs: Any) -> Operand:
    """The nodes in attributes ``first`` and ``second``, as one step where that is better.

    Inputs: x, then those of `_Separable`.
    """
    its = _Separable(*inputs)
    joint = _joint(b, node, x, its)
    if joint is None:
        first, second = node.attrs["first"], node.attrs["second"]
        between = conv(b, first, x, its.taps, its.offset)
        return conv(b, second, between, its.w, its.bias, its.residual, target=its.target)
    product = _product_of(b, node, joint, its)
    depthwise = _depthwise_of(b, node, joint, its, True)
    args = b.flat(x), depthwise, product.arrays, product.context, product.epilogue
    b.call(separable_convolution, *args, work=product.work, exec_type=product.exec_type)
    return joint.y


@kernel("BottleneckConv", domain=DOMAIN, dtypes=STORED)
def bottleneck_conv(
    b: Builder, node: Node, x: Operand, wide: Operand, shift: Operand | None, *inputs: Any
) -> Operand:
    """The nodes in attributes ``wide`` and ``rest``, as one step where that is better.

    Inputs: x, weights and bias of the first 1x1 convolution, then those of `_Separable`.
    """
    first, rest, its = node.attrs["wide"], node.attrs["rest"], _Separable(*inputs)
    policy, place = choice_of(b), Place.of(first, x, None).settled()
    n, height, width = x.shape[:3]
    images = Images(
        batch=n,
        height=height,
        width=width,
        channels=place.channels,
        outputs=wide.shape[0],
        out_height=height,
        out_width=width,
    )
    stored = np.dtype(HALF if first.attrs.get("half") else np.float32)
    arithmetic = policy.preferred_arithmetic(images)
    storage = Storage(x.dtype == HALF, stored == HALF, x_pitch=x.shape[3], x_first=place.first)
    cut = plan(images, policy.machine, arithmetic, policy.threads, storage)
    simple = arithmetic in (Arithmetic.F32, Arithmetic.BF16)
    simple &= cut.source is Source.DIRECT and cut.table[CHUNK] >= cut.table[TAPS]
    window = resolve(rest.attrs["first"], x.shape[1:3], its.taps.shape[2:])
    # AMX reads its tiles as a whole.
    least = int(cut.table[TILE_ROWS]) if on_tiles(policy.level, arithmetic) else 1
    nbytes, narrow = wide.shape[0] * stored.itemsize, arithmetic.in_bfloat16
    read = arithmetic.weight_bytes * wide.shape[0] * (place.channels + its.w.shape[0])
    pixels = Pixels(nbytes, least, read, narrow)
    rows = bands(window, pixels, policy.machine, policy.threads, n)
    joint, fitted = None, cut
    if simple and rows is not None:
        band = b.empty((policy.threads, rows[ROWS], width, wide.shape[0]), stored)
        joint = _joint(b, rest, band, its, (n, height, width))
    if joint is not None:
        fitted, weights = fitting(b, policy, cut, wide)
    if joint is None or rows is None or fitted is not cut:
        between = _expanded(b, node, x, wide, shift, its, cut if simple else None)
        if between is not None:
            rest_of = its.w, its.bias, its.residual
            return conv(b, rest.attrs["second"], between, *rest_of, target=its.target)
        between = conv(b, first, x, wide, shift)
        return separable_conv(b, rest, between, *inputs)
    activation = first.attrs.get("activation")
    before = product_of(b, policy, cut, LinearOp(weights, shift, None, activation), band)
    arrays, context, bounds = before.arrays, before.context, before.epilogue
    tables = context.offsets, context.kernels, context.p
    within = bounds.low, bounds.high, bounds.gate
    memory = thread_memory(b, policy.threads, integer(rows[ROOM]), second=True)
    copy = llvm_kernel.addresses(policy.level)["copy"]
    bands_of = memory, b.constant(rows), copy
    expansion = Expansion(arrays.w, arrays.bias, *tables, *within, *bands_of)
    product = _product_of(b, rest, joint, its)
    depthwise = _depthwise_of(b, rest, joint, its, False)
    args = b.flat(x), expansion, depthwise, product.arrays, product.context, product.epilogue
    work, exec_type = before.work + product.work, product.exec_type
    b.call(inverted_bottleneck, *args, work=work, exec_type=exec_type)
    return joint.y


def _expanded(
    b: Builder,
    node: Node,
    x: Operand,
    wide: Operand,
    shift: Operand | None,
    its: _Separable,
    cut: Plan | None,
) -> Operand | None:
    """The first two convolutions of a bottleneck as one step, where that is better.

    Args:
        b: Records it.
        node: The bottleneck.
        x: What it reads.
        wide: Weights of the first convolution.
        shift: Its bias.
        its: The other ones' weights and biases.
        cut: The first one's plan, if its tiles read x where it lies.
    """
    first, rest = node.attrs["wide"], node.attrs["rest"]
    depthwise, policy = rest.attrs["first"], choice_of(b)
    if cut is None or cut.images.symbolic or policy.threads == 1:
        return None
    ways = ways_without_padding(b, resolve(depthwise, x.shape[1:3], its.taps.shape[2:]), its.taps)
    window = ways[0].window
    if len(ways) > 1 or not takes(window):
        return None
    shares = shares_of_channels(cut, window, policy.threads)
    if not shares:
        return None
    stored = np.dtype(HALF if first.attrs.get("half") else np.float32)
    between = b.empty((*x.shape[:3], wide.shape[0]), stored)
    if bool(depthwise.attrs.get("half")) != (stored == HALF) or _joint(b, rest, between, its):
        return None
    fitted, weights = fitting(b, policy, cut, wide)
    if fitted is not cut:
        return None
    op = LinearOp(weights, shift, None, first.attrs.get("activation"))
    product = product_of(b, policy, cut, op, between)
    place = Place.of(depthwise, between, None).settled()
    y = place.output(b, (x.shape[0], *window.out_shape, wide.shape[0]), stored == HALF)
    op = LinearOp(ways[0].weights, its.offset, None, depthwise.attrs.get("activation"))
    b.call(
        expanded_depthwise,
        b.flat(x),
        product.arrays,
        product.context,
        product.epilogue,
        depthwise_of(b, window, place, op, place.channels, False),
        ImageTarget(b.flat(y), y.shape[3], place.into, shares),
        work=product.work + y.size * window.taps,
        exec_type=product.exec_type,
    )
    return y


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
    its: _Separable,
    size: tuple[int, int, int] | None = None,
) -> _Joint | None:
    """The step of both, if that is better; `size` is the images' if x is only a band of one."""
    taps, w, target = its.taps, its.w, its.target
    first, second = node.attrs["first"], node.attrs["second"]
    n, rows, columns = x.shape[:3] if size is None else size
    window = resolve(first, (rows, columns), taps.shape[2:])
    source = Place.of(first, x, None).settled()
    place = Place(x, 0, source.channels, target, second.attrs.get("into", 0))
    shape = (n, *window.out_shape, w.shape[0])
    policy = choice_of(b)
    down, across = window.out[1:]
    sizes = n, down, across, source.channels, w.shape[0]
    images = Images(*sizes, out_height=down, out_width=across)
    arithmetic = policy.preferred_arithmetic(images, computed=True)
    half_out = bool(second.attrs.get("half"))
    y_pitch = w.shape[0] if target is None else target.shape[3]
    storage = Storage(False, half_out, y_pitch=y_pitch, y_first=place.into, computed=True)
    cut = plan(images, policy.machine, arithmetic, policy.threads, storage)
    narrow = arithmetic is Arithmetic.BF16
    apart = (
        not math.prod(shape)
        or not takes(window)
        or policy.arithmetic is Arithmetic.F16
        or (cut.table[SHARES_ACROSS] > 1 and size is None)  # threads share a band's lines alone
        or (x.dtype == HALF) != narrow
        or bool(first.attrs.get("half")) != narrow
    )
    if apart:
        return None
    fitted, weights = fitting(b, policy, cut, w)
    if fitted is not cut:
        return None
    return _Joint(window, source, cut, weights, place.output(b, shape, half_out))


def _product_of(b: Builder, node: Node, joint: _Joint, its: _Separable) -> Product:
    """The product, and the work of both."""
    residual = its.residual
    if residual is not None:
        residual = expanded(b, residual, joint.y.shape)
    activation, images = node.attrs["second"].attrs.get("activation"), joint.cut.images
    op = LinearOp(joint.weights, its.bias, residual, activation)
    product = product_of(b, choice_of(b), joint.cut, op, joint.y)
    depthwise = images.pixels * images.channels * joint.window.taps
    return product._replace(work=product.work + depthwise)


def _depthwise_of(b: Builder, node: Node, joint: _Joint, its: _Separable, far: bool) -> Depthwise:
    """The depthwise convolution; of a band that a cache holds, or of a `far` image."""
    op = LinearOp(its.taps, its.offset, None, node.attrs["first"].attrs.get("activation"))
    return depthwise_of(b, joint.window, joint.source, op, joint.cut.padded, far)
