"""Convolutions and pools of volumes, slice by slice, on images (N, D x H, W, C)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.reached_taps import without_padding
from partita.lowering.geometry.windows import Window, resolve, resolve_transposed
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import LARGE_PANEL_SHARE, plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import LinearOp, LinearStep, emit_product
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.nhwc.depthwise import counts_of, emit_slide
from partita_cpu.kernels.nhwc.operators import conv, images_of, to_last
from partita_cpu.kernels.nhwc.placement import HALF, SLICES, STORED, Place, choice_of
from partita_cpu.kernels.nhwc.transposed_blocks import emit_blocks
from partita_cpu.kernels.operator_table import kernel
from partita_cpu.nhwc.window import MAX, MEAN
from partita_cpu.scalar.math import copy_row

MOST_RESULTS = 8
"""Slices of the result that are computed together, at most."""


@kernel("Conv", domain=SLICES, dtypes=STORED)
def conv_slices(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """A convolution of each slice, whose channels are those of all slices under the window.

    Weights are those of the volume, (outputs, channels, depth, height, width).
    """
    slices = int(node.attrs["slices"])
    shape = (w.shape[0], w.shape[2] * w.shape[1], *w.shape[3:])
    flat = b.prepack(w, "slices", _slices_behind_another, form=Form(w.dtype, shape))
    n, rows, width, channels = x.shape
    images = b.view(x, (n * slices, rows // slices, width, channels))
    if residual is not None:
        n, rows, width, outputs = residual.shape
        residual = b.view(residual, (n * slices, rows // slices, width, outputs))
    y = conv(b, node, images, flat, bias, residual)
    return b.view(y, (n, slices * y.shape[1], *y.shape[2:]))


@kernel("SummedConv", domain=SLICES, dtypes=STORED)
def sum_convolutions(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Each output slice by itself: its tiles add up all slices under its window.

    Nothing of the input is joined in memory. Weights are those of the volume, (outputs, channels,
    depth, height, width); there is one volume. A ``planar`` input is (1, C, D x H, W).
    """
    planar = bool(node.attrs.get("planar"))
    channels, rows, width = x.shape[1:] if planar else (x.shape[3], *x.shape[1:3])
    slices, outputs = int(node.attrs["slices"]), w.shape[0]
    height = rows // max(slices, 1)
    window, w = without_padding(b, resolve(node, (slices, height, width), w.shape[2:]), w)
    out, out_height, out_width = window.out
    kept = HALF if node.attrs.get("half") else np.float32
    y = b.empty((1, out * out_height, out_width, outputs), kept)
    if y.size:
        images = images_of(1, channels, outputs, 1, window)
        if planar and not _reads_planes(b, images, window, w):
            x, planar = to_last(b, x), False
        storage = Storage(
            x.dtype == HALF,
            y.dtype == HALF,
            channels,
            y_pitch=outputs,
            planar=rows * width if planar else 0,
        )
        op = LinearOp(w, bias, residual, node.attrs.get("activation"))
        _emit_slices(b, LinearStep(images, x, op, y, storage), window)
    return y


def _reads_planes(b: Builder, images: Images, window: Window, w: Operand) -> bool:
    """Whether pictures can be read as they are: their lines are laid out anew in any case."""
    policy, taps = choice_of(b), window.kernel[0]
    every = replace(images, slices=taps, covered=(0, taps))
    arithmetic = policy.product_arithmetic(every, b.value(w, anywhere=True))
    planes = Storage(planar=images.height * images.width)
    return plan(every, policy.machine, arithmetic, policy.threads, planes).source is Source.HALO


def _emit_slices(b: Builder, step: LinearStep, window: Window) -> None:
    """A step for some output slices each, for which the slices under their windows are laid out."""
    images, _, op, _, storage, _ = step
    w, taps, policy = op.w, window.kernel[0], choice_of(b)
    shape = (*w.shape[:2], taps * w.shape[3], w.shape[4])
    tall = b.prepack(w, "tall", _slices_below_another, form=Form(w.dtype, shape))
    op = op._replace(w=tall)
    stride, apart, out = window.stride[0], window.dilation[0], window.out[0]
    size = images.height * images.width * (1 if storage.planar else images.channels)
    parts = -(-out // _results_at_once(images, window, policy))
    for part in range(parts):
        place, behind = out * part // parts, out * (part + 1) // parts
        first = place * stride - window.begin[0]
        places = range(first, first + apart * (taps + (behind - place - 1) * stride), apart)
        lacking = sum(at < 0 for at in places), sum(at >= window.size[0] for at in places)
        product = replace(
            images,
            slices=taps,
            covered=(0, taps),
            slice_step=apart * size,
            results=behind - place,
            result_stride=stride,
            outside=lacking,
        )
        of_slice = images.out_height * images.out_width * images.outputs
        where = replace(storage, x_first=first * size, y_first=place * of_slice)
        emit_product(b, policy, step._replace(images=product, op=op, storage=where))


def _results_at_once(images: Images, window: Window, policy: PrecisionPolicy) -> int:
    """Slices of the result by which least is laid out for each of them.

    The slices that their windows share are laid out once; but the more slices a panel holds, the
    fewer lines, and neighbouring panels share lines too.
    """
    taps, stride = window.kernel[0], window.stride[0]
    if images.symbolic or window.dilation[0] > 1:
        return 1
    every = replace(images, slices=taps, covered=(0, taps))
    arithmetic = policy.preferred_arithmetic(every)
    cut = plan(every, policy.machine, arithmetic, policy.threads)
    halo = cut.source is Source.HALO
    # Windows that are copied pixel by pixel share nothing with those of the next line.
    extra = (images.kernel[0] - 1) * images.dilation[0] if halo else 0
    down = images.stride[0] if halo else 1
    cells = images.channels * (images.width + sum(images.begin))
    if not halo:
        cells = cut.padded * images.out_width
    line = arithmetic.element_bytes * arithmetic.planes * cells
    room = policy.machine.l2_bytes(LARGE_PANEL_SHARE) // max(line, 1)

    def cost(results: int) -> float:
        slices = taps + (results - 1) * stride
        lines = (room // slices - extra) // down
        lines = max(1, min(lines, images.out_height // policy.threads))
        return slices / results * (down + extra / lines)

    return min(range(1, MOST_RESULTS + 1), key=cost)


@kernel("ConvTranspose", domain=SLICES, dtypes=STORED)
def conv_transpose_slices(
    b: Builder, node: Node, x: Operand, w: Operand, bias: Operand | None = None
) -> Operand:
    """A transposed convolution whose windows touch and do not overlap.

    Weights are those of the volume, (channels, outputs, depth, height, width).
    """
    n, rows, width, channels = x.shape
    slices = int(node.attrs["slices"])
    window = resolve_transposed(node, (slices, rows // max(slices, 1), width), w.shape[2:])
    deep, height, across = window.size
    kept = HALF if node.attrs.get("half") else np.float32
    y = b.empty((n, deep * height, across, w.shape[1]), kept)
    if y.size:
        op = LinearOp(w, bias, None, node.attrs.get("activation"))
        emit_blocks(b, window, Place(x, 0, channels, None, 0), op, y)
    return y


def _slices_below_another(w: Array) -> Array:
    """(outputs, channels, depth, height, width) as (outputs, channels, depth x height, width)."""
    return w.reshape(*w.shape[:2], w.shape[2] * w.shape[3], w.shape[4])


def _slices_behind_another(w: Array) -> Array:
    """(outputs, channels, depth, ...) as (outputs, depth x channels, ...)."""
    shape = (w.shape[0], w.shape[1] * w.shape[2], *w.shape[3:])
    return np.ascontiguousarray(w.swapaxes(1, 2)).reshape(shape)


@kernel("MaxPool", "AveragePool", domain=SLICES, dtypes=STORED)
def pool_slices(b: Builder, node: Node, x: Operand) -> Operand:
    """The largest element or the mean of each window: in every slice first, then across slices."""
    n, rows, width, channels = x.shape
    slices = int(node.attrs["slices"])
    size = slices, rows // max(slices, 1), width
    ceil_mode = bool(node.attrs.get("ceil_mode", 0))
    window = resolve(node, size, node.attrs["kernel_shape"], ceil_mode=ceil_mode)
    out, height, across = window.out
    within, between = _seen_as(window, _within), _seen_as(window, _between)
    flat = _pooled(b, node, b.view(x, (n * slices, *size[1:], channels)), within)
    tall = b.view(flat, (n, slices, 1, height * across * channels))
    return b.view(_pooled(b, node, tall, between), (n, out * height, across, channels))


def _within(field: tuple[int, int, int], one: int) -> tuple[int, int, int]:
    """Height and width of a window's field, with a depth of one."""
    return one, field[1], field[2]


def _between(field: tuple[int, int, int], one: int) -> tuple[int, int, int]:
    """The depth of a window's field as the height of an image one pixel wide."""
    return one, field[0], one


def _seen_as(window: Window, field: Callable[..., tuple[int, int, int]]) -> Window:
    """A window over some dimensions of a volume as one over images."""
    return Window(
        field(window.size, 1),
        field(window.kernel, 1),
        field(window.stride, 1),
        field(window.dilation, 1),
        field(window.begin, 0),
        field(window.end, 0),
        field(window.out, 1),
        rank=2,
    )


def _pooled(b: Builder, node: Node, x: Operand, window: Window) -> Operand:
    """A pool over images, (N, H, W, C); the images themselves where it leaves them as they are."""
    if window.is_pointwise:
        return x
    y = b.empty((x.shape[0], *window.out[1:], x.shape[3]), x.dtype)
    if not y.size:
        return y
    place, none = Place(x, 0, x.shape[3], None, 0), LinearOp(b.constant(np.zeros(1, np.float32)))
    if node.op_type == "MaxPool":
        emit_slide(b, window.trimmed, place, none, y, MAX)
        return y
    include = bool(node.attrs.get("count_include_pad", 0))
    emit_slide(b, window.trimmed, place, none, y, MEAN, counts_of(b, window, include))
    return y


class SliceWindow(NamedTuple):
    """Which slices a window covers.

    Attributes:
        slices: Of the input.
        out: Of the output.
        taps: Slices of a window.
        stride: From one window to the next.
        dilation: From one slice of a window to the next.
        begin: Slices of zeros in front.
        pixels: Of a slice.
        channels: Of a pixel.
    """

    slices: int
    out: int
    taps: int
    stride: int
    dilation: int
    begin: int
    pixels: int
    channels: int


@kernel("Join", domain=SLICES, dtypes=STORED)
def join(b: Builder, node: Node, x: Operand) -> Operand:
    """For each window the channels of all slices under it, or zeros where it lies outside."""
    names = ("slices", "out", "taps", "stride", "dilation", "begin")
    slices, out, taps, stride, dilation, begin = (int(node.attrs[name]) for name in names)
    n, rows, width, channels = x.shape
    height = rows // max(slices, 1)
    y = b.empty((n, out * height, width, taps * channels), x.dtype)
    if y.size:
        window = SliceWindow(slices, out, taps, stride, dilation, begin, height * width, channels)
        b.call(join_slices, b.flat(x), b.flat(y), window, exec_type="copy")
    return y


@loop
def join_slices(x: Array, y: Array, window: SliceWindow, tid: int, nt: int) -> None:
    """``y[n, o, p, t] = x[n, o * stride + t * dilation - begin, p]``; threads share the pixels.

    Args:
        x: Input (N, slices, pixels, channels), flat; float32, or bfloat16 as uint16.
        y: Output (N, out, pixels, taps, channels), flat; of the same type.
        window: The sizes.
        tid: This thread.
        nt: All threads.
    """
    slices, out, taps, stride, dilation, begin, pixels, channels = window
    runs = y.size // channels
    for run in range(runs * tid // nt, runs * (tid + 1) // nt):
        place = run // taps
        image = place // (pixels * out)
        depth = place // pixels - image * out
        pixel = place - place // pixels * pixels
        target = y[run * channels : (run + 1) * channels]
        at = depth * stride + (run - place * taps) * dilation - begin
        if 0 <= at < slices:
            start = ((image * slices + at) * pixels + pixel) * channels
            copy_row(x[start : start + channels], target)
        else:
            for i in range(channels):
                target[i] = x.dtype.type(0)
