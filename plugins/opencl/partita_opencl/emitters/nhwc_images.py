"""Operators on images of halves with channels last, in domain ``partita.nhwc``.

`passes.nhwc` makes such nodes where there are matrix units. An image (n, c, y, x) lies in memory as
(n, y, x, channels), with channels filled up to whole units by elements that mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.errors import CompileError, OperandError
from partita.lowering import Array, Node, Operand
from partita.lowering.nhwc.conversion import DOMAIN
from partita_opencl.emitters.convolution import LARGEST_IMAGE, check_size
from partita_opencl.emitters.gemm.matrix_units import stream_product
from partita_opencl.emitters.gemm.products import Epilogue, activation_of
from partita_opencl.emitters.gemm.stream import (
    Stream,
    StreamOperands,
    packed,
    packed_bias,
    packed_filters,
)
from partita_opencl.emitters.operator_table import operator
from partita_opencl.emitters.windows import Window, window_of
from partita_opencl.launches.emitter_kit import Kit, f32, i32, ints, is_half
from partita_opencl.passes.half_precision import HALF, SINGLE
from partita_opencl.passes.nhwc import FEW, UNIT, filled

_POOL_ITEMS = 256
_POOL_UNITS = 8


@operator("ToChannelsLast", domain=DOMAIN)
def to_channels_last(k: Kit, node: Node, x: Operand) -> Operand:
    """(n, c, y, x) of any float to (n, y, x, channels) of halves."""
    n, c, h, w = x.shape
    pitch = filled(c)
    out = k.empty((n, h, w, pitch), HALF)
    if not out.size:
        return out
    if h * w == 1 and pitch == c and is_half(x.dtype):
        return k.view(x, out.shape)
    unused = ints(0, 0, 0, 0)
    k.launch(
        "image_layout.cl",
        "to_channels_last",
        k.tuning.grid(h * w, pitch // UNIT, n),
        x,
        out,
        i32(n),
        i32(c),
        i32(h * w),
        i32(pitch),
        unused,
        unused,
        TO_HALF=None,
        **_source(x),
    )
    return out


@operator("ToChannelsFirst", domain=DOMAIN)
def to_channels_first(k: Kit, node: Node, x: Operand) -> Operand:
    """(n, y, x, channels) of halves to (n, c, y, x) of halves, or of floats if the node says so."""
    n, h, w, pitch = x.shape
    channels = int(node.attrs["channels"])
    single = bool(node.attrs.get("single", False))
    if not single and channels == pitch and (h * w == 1 or not x.size):
        return k.view(x, (n, channels, h, w))
    out = k.empty((n, channels, h, w), SINGLE if single else HALF)
    if out.size:
        k.launch(
            "image_layout.cl",
            "to_channels_first",
            k.tuning.grid(h * w, pitch // UNIT, n),
            x,
            out,
            i32(n),
            i32(channels),
            i32(h * w),
            i32(pitch),
            **_source(x),
            **({} if single else {"TO_HALF": None}),
        )
    return out


def _source(x: Operand) -> dict[str, None]:
    return {"FROM_HALF": None} if is_half(x.dtype) else {}


@operator("Conv", domain=DOMAIN)
def conv(
    k: Kit,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Convolution by constant weights (filter, channel, y, x), with all that may follow it.

    With attribute ``picture``, the input still has its channels first.
    """
    picture = bool(node.attrs.get("picture", False))
    window = window_of(node, x.shape[2:] if picture else x.shape[1:3], w.shape[2:])
    groups = int(node.attrs.get("group", 1))
    filters = w.shape[0]
    check_size(node, x.size // max(x.shape[0], 1), w.shape[1] * groups, window)
    out = k.empty((x.shape[0], window.out[1], window.out[0], filled(filters)), HALF)
    if not out.size:
        return out
    if residual is not None and residual.shape != out.shape:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot add a tensor of shape "
            f"{list(residual.shape)} to a result of shape {list(out.shape)}."
        )
    if groups == filters > 1 == w.shape[1]:
        finish = Epilogue(bias, residual=residual, activation=activation_of(node))
        _depthwise(k, window, x, w, finish, out)
        return out
    if picture:
        x, weights, stream = _picture(k, window, x, w)
        row = packed_bias(k, stream, w, bias)
    else:
        stream = Stream(
            images=x.shape[0],
            image=_xy(window.image),
            pitch=x.shape[3],
            channels=w.shape[1],
            filters=filters // groups,
            groups=groups,
            out=_xy(window.out),
            taps=_xy(window.size),
            stride=_xy(window.stride),
            begin=_xy(window.begin),
            dilation=_xy(window.dilation),
        )
        weights, row = packed(k, stream, w, bias)
    operands = StreamOperands(x, weights, row, residual, out)
    stream_product(k, stream, operands, activation_of(node))
    return out


def _picture(k: Kit, window: Window, x: Operand, w: Operand) -> tuple[Operand, Operand, Stream]:
    """A picture of few channels, padded; the pixels of a row that a window reads are its channels.

    Where windows step by an even number, they start at whole units.
    """
    n, c, high, wide = x.shape
    run = filled(window.size[0] * FEW)
    padded_x = max(window.begin[0] + wide, (window.out[0] - 1) * window.stride[0] + run // FEW)
    padded_y = window.begin[1] + high + max(0, window.end[1])
    padded_x += padded_x % 2
    if n * padded_x * padded_y * FEW > LARGEST_IMAGE:
        raise CompileError(
            f"Operation '{k.builder.node.name}' (Conv) pads {n} images to {[padded_y, padded_x]} "
            f"pixels of {FEW} elements; device OPENCL takes {LARGEST_IMAGE} elements."
        )
    image = k.empty((n, padded_y, padded_x, FEW), HALF)
    k.launch(
        "image_layout.cl",
        "to_channels_last",
        k.tuning.grid(padded_x * padded_y, 1, n),
        x,
        image,
        i32(n),
        i32(c),
        i32(high * wide),
        i32(FEW),
        ints(wide, high, window.begin[0], window.begin[1]),
        ints(padded_x, padded_y, 0, 0),
        TO_HALF=None,
        FEW=None,
        **_source(x),
    )
    stream = Stream(
        images=n,
        image=(padded_x, padded_y),
        pitch=FEW,
        channels=run,
        filters=w.shape[0],
        out=_xy(window.out),
        taps=(1, window.size[1]),
        stride=_xy(window.stride),
        dilation=(1, window.dilation[1]),
    )

    def pack(array: Array) -> Array:
        filters, _, ky, kx = array.shape
        rows = np.zeros((filters, ky, run // FEW, FEW), np.float32)
        rows[:, :, :kx, :c] = array.transpose(0, 2, 3, 1)
        return packed_filters(k, stream, rows.reshape(filters, ky, run).transpose(0, 2, 1))

    return image, k.builder.prepack(w, ("picture", run), pack), stream


def _depthwise(
    k: Kit, window: Window, x: Operand, w: Operand, finish: Epilogue, out: Operand
) -> None:
    """Records a convolution of each channel with its own taps.

    Args:
        k: Records it.
        window: How it slides.
        x: Halves (n, y, x, channels), filled up to whole units.
        w: Weights (channel, 1, y, x), a constant.
        finish: Bias, residual and activation.
        out: Receives halves, filled up likewise.
    """
    pitch = x.shape[3]
    channels = w.shape[0]

    def pack(array: Array) -> Array:
        taps = array.reshape(channels, -1).T
        return k.halves(np.pad(taps, ((0, 0), (0, pitch - channels))))

    stream = Stream(x.shape[0], _xy(window.image), pitch, channels, channels)
    weights = k.builder.prepack(w, "depthwise last", pack)
    residual, activation = finish.residual, finish.activation
    _slide(
        k,
        window,
        x,
        out,
        (weights, packed_bias(k, stream, w, finish.bias), residual or x),
        (i32(residual is not None), f32(activation.alpha), f32(activation.beta)),
        WEIGH=None,
        ACTIVATION=int(activation.code),
    )


def _slide(
    k: Kit,
    window: Window,
    x: Operand,
    out: Operand,
    weights: tuple[Operand, ...],
    last: tuple[np.generic, ...],
    counted: int = 0,
    **options: int | None,
) -> None:
    """Records a launch of ``window_last``, which weighs or pools what lies under each window.

    Args:
        k: Records it.
        window: How it slides; sizes are (x, y).
        x: Halves (n, y, x, channels), filled up to whole units.
        out: Receives halves, filled up likewise.
        weights: Weights, bias and residual; empty for pools.
        last: Whether there is a residual, and both numbers of the activation.
        counted: Whether a mean counts pixels of the padding.
        options: Macros: what is done.
    """
    n, high, wide, pitch = out.shape
    k.launch(
        "window_last.cl",
        "window_last",
        k.tuning.grid(pitch // UNIT * wide, n * high),
        x,
        *weights,
        out,
        i32(n),
        i32(pitch),
        ints(*window.image[:2], wide, high),
        ints(*window.size[:2], *window.dilation[:2]),
        ints(*window.stride[:2], *window.begin[:2]),
        i32(counted),
        ints(*window.end[:2]),
        *last,
        **options,
    )


def _xy(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[1]


@operator("MaxPool", "AveragePool", domain=DOMAIN)
def pool(k: Kit, node: Node, x: Operand) -> Operand:
    """The maximum or mean of each window."""
    window = window_of(node, x.shape[1:3], node.attrs["kernel_shape"])
    out = k.empty((x.shape[0], window.out[1], window.out[0], x.shape[3]), HALF)
    if out.size:
        options = {"AVERAGE": None} if node.op_type == "AveragePool" else {}
        counted = int(node.attrs.get("count_include_pad", 0) != 0)
        _slide(k, window, x, out, (), (i32(0), f32(0), f32(0)), counted, **options)
    return out


@operator("GlobalAveragePool", "GlobalMaxPool", domain=DOMAIN)
def global_pool(k: Kit, node: Node, x: Operand) -> Operand:
    """The mean or maximum of each channel of each image."""
    n, high, wide, pitch = x.shape
    out = k.empty((n, 1, 1, pitch), HALF)
    if not out.size:
        return out
    options: dict[str, None] = {"AVERAGE": None} if "Average" in node.op_type else {}
    k.launch(
        "window_last.cl",
        "whole_image_last",
        k.tuning.groups(n * math.ceil(pitch // UNIT / _POOL_UNITS), _POOL_ITEMS),
        x,
        out,
        i32(high * wide),
        i32(pitch),
        ITEMS=_POOL_ITEMS,
        UNITS=_POOL_UNITS,
        **options,
    )
    return out
