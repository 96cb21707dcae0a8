"""Operators on images with channels last, in domain ``partita.nhwc``; `layout` makes such nodes.

They exist only where there are native kernels, so they need no portable form.
"""

from __future__ import annotations

import math

import numpy as np

from partita.errors import CompileError
from partita.lowering import Activation, Array, Builder, Node, Operand
from partita_cpu.kernels.movement import expanded
from partita_cpu.kernels.table import F32, kernel
from partita_cpu.kernels.window import Window, resolve
from partita_cpu.native.choice import Choice, native_choice
from partita_cpu.native.plan import Images
from partita_cpu.native.product import bounds_of, emit_product
from partita_cpu.native.sliding import (
    MAX,
    MEAN,
    WEIGH,
    over_all_pixels,
    scale_and_shift,
    slide,
    spread_blocks,
    swap_axes,
)
from partita_cpu.native.table import window_kernels

DOMAIN = "partita.nhwc"


def _choice(b: Builder) -> Choice:
    choice = native_choice(b.options)
    if choice is None:
        raise CompileError(
            f"Operation '{b.node.name}' ({b.node.kind}) needs native kernels, and there "
            "are none for this machine."
        )
    return choice


@kernel("ToChannelsLast", domain=DOMAIN, dtypes=F32)
def to_channels_last(b: Builder, node: Node, x: Operand) -> Operand:
    """(N, C, H, W) to (N, H, W, C), or with zeros for more channels if the node asks for them."""
    n, c, h, w = x.shape
    return _swapped(b, x, c, h * w, (n, h, w, int(node.attrs.get("channels", c))))


@kernel("ToChannelsFirst", domain=DOMAIN, dtypes=F32)
def to_channels_first(b: Builder, node: Node, x: Operand) -> Operand:
    """(N, H, W, C) to (N, C, H, W)."""
    n, h, w, c = x.shape
    return _swapped(b, x, h * w, c, (n, c, h, w))


def _swapped(b: Builder, x: Operand, rows: int, columns: int, shape: tuple[int, ...]) -> Operand:
    y = b.empty(shape, x.dtype)
    if y.size == x.size and (rows == 1 or columns == 1 or not x.size):
        return b.view(x, shape)
    pitch = y.size * rows // x.size
    b.call(swap_axes, b.flat(x), b.flat(y), rows, columns, pitch, exec_type="reorder")
    return y


@kernel("Conv", domain=DOMAIN, dtypes=F32)
def conv(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Convolution by constant weights, then bias, residual and activation."""
    window = resolve(node, x.shape[1:3], w.shape[2:])
    groups = int(node.attrs.get("group", 1))
    n, _, _, channels = x.shape
    if channels != w.shape[1] * groups or w.shape[0] % groups:
        raise CompileError(
            f"Operation '{node.name}' (Conv): {channels} input channels do not fit weights of "
            f"shape {list(w.shape)} in {groups} groups."
        )
    y = b.empty((n, *window.out_shape, w.shape[0]), x.dtype)
    if not y.size:
        return y
    if residual is not None:
        residual = expanded(b, residual, y.shape)
    activation = node.attrs.get("activation")
    if 1 < groups == channels == w.shape[0] and residual is None:
        _emit_depthwise(b, window, x, w, bias, y, activation)
        return y
    images = Images(
        n,
        *window.size[1:],
        channels,
        w.shape[0],
        groups,
        window.kernel[1:],
        window.stride[1:],
        window.dilation[1:],
        window.begin[1:],
        window.end[1:],
        *window.out[1:],
    )
    emit_product(b, _choice(b), images, x, w, bias, residual, y, activation)
    return y


@kernel("ConvTranspose", domain=DOMAIN, dtypes=F32)
def conv_transpose(
    b: Builder, node: Node, x: Operand, w: Operand, bias: Operand | None = None
) -> Operand:
    """A transposed convolution whose windows touch but do not overlap: each pixel makes a block."""
    n, h, width, channels = x.shape
    inputs, outputs, down, across = w.shape
    if inputs != channels:
        raise CompileError(
            f"Operation '{node.name}' (ConvTranspose): {channels} input channels do not fit "
            f"weights of shape {list(w.shape)}."
        )
    y = b.empty((n, h * down, width * across, outputs), x.dtype)
    if not y.size:
        return y
    matrix = b.prepack(w, "blocks", _block_matrix)
    if bias is not None:
        bias = b.prepack(bias, ("repeated", down * across), lambda v: np.tile(v, down * across))
    blocks = y if down == 1 else b.empty((n * h * width, down * across * outputs), x.dtype)
    images = Images.matrix(n * h * width, channels, down * across * outputs)
    activation = node.attrs.get("activation")
    emit_product(b, _choice(b), images, x, matrix, bias, None, blocks, activation)
    if blocks is not y:
        run = across * outputs
        b.call(spread_blocks, b.flat(blocks), b.flat(y), width, down, run, exec_type="reorder")
    return y


def _block_matrix(w: Array) -> Array:
    """(inputs, outputs, down, across) as (inputs, down x across x outputs)."""
    return np.ascontiguousarray(w.transpose(0, 2, 3, 1)).reshape(w.shape[0], -1)


def _emit_depthwise(
    b: Builder,
    window: Window,
    x: Operand,
    w: Operand,
    bias: Operand | None,
    y: Operand,
    activation: Activation | None,
) -> None:
    channels = y.shape[-1]
    weights = b.prepack(w, "taps first", _taps_first)
    offset = b.constant(np.zeros(channels, np.float32)) if bias is None else b.flat(bias)
    _emit_slide(b, window, x, weights, offset, y, WEIGH, activation)


def _taps_first(w: Array) -> Array:
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T).reshape(-1)


def _emit_slide(
    b: Builder,
    window: Window,
    x: Operand,
    w: Operand,
    bias: Operand,
    y: Operand,
    kind: int,
    activation: Activation | None = None,
    counts: tuple[Array, Array] | None = None,
) -> None:
    choice = _choice(b)
    low, high, act = bounds_of(activation)
    none = np.ones(1, np.int64)
    down, across = counts or (none, none)
    b.call(
        slide,
        b.flat(x),
        w,
        bias,
        b.flat(y),
        b.constant(window_kernels(choice.level, ("weigh", "max", "sum")[kind])),
        b.constant(window.table),
        b.constant(down),
        b.constant(across),
        y.shape[-1],
        kind,
        low,
        high,
        int(act.code),
        float(act.alpha),
        float(act.beta),
        work=y.size * window.taps,
        exec_type="avx2_f32" if choice.level.label == "avx2" else "avx512_f32",
    )


@kernel("MaxPool", domain=DOMAIN, dtypes=F32)
def max_pool(b: Builder, node: Node, x: Operand) -> Operand:
    """The largest element of each window."""
    window, y = _pool(b, node, x)
    if y.size:
        _emit_slide(b, window, x, b.flat(y), b.flat(y), y, MAX)
    return y


@kernel("AveragePool", domain=DOMAIN, dtypes=F32)
def average_pool(b: Builder, node: Node, x: Operand) -> Operand:
    """The mean of each window, with or without the padding under it."""
    window, y = _pool(b, node, x)
    if y.size:
        include = bool(node.attrs.get("count_include_pad", 0))
        counts = counted(window, 1, include), counted(window, 2, include)
        _emit_slide(b, window, x, b.flat(y), b.flat(y), y, MEAN, counts=counts)
    return y


def _pool(b: Builder, node: Node, x: Operand) -> tuple[Window, Operand]:
    ceil_mode = bool(node.attrs.get("ceil_mode", 0))
    window = resolve(node, x.shape[1:3], node.attrs["kernel_shape"], ceil_mode=ceil_mode)
    return window, b.empty((x.shape[0], *window.out_shape, x.shape[3]), x.dtype)


def counted(window: Window, axis: int, include_pad: bool) -> Array:
    """How many places of one dimension each window averages over, at least 1.

    What the last window of ceil_mode has beyond the padding never counts.
    """
    starts = np.arange(window.out[axis]) * window.stride[axis] - window.begin[axis]
    places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilation[axis]
    size = window.size[axis]
    within = places < size + window.end[axis] if include_pad else (places >= 0) & (places < size)
    counts: Array = np.maximum(within.sum(axis=1, dtype=np.int64), 1)
    return counts


@kernel("GlobalAveragePool", "GlobalMaxPool", domain=DOMAIN, dtypes=F32)
def global_pool(b: Builder, node: Node, x: Operand) -> Operand:
    """The mean or the maximum of each channel."""
    n, h, w, c = x.shape
    y = b.empty((n, 1, 1, c), x.dtype)
    mean = node.op_type == "GlobalAveragePool"
    if y.size and h * w:
        kernels = window_kernels(_choice(b).level, "sum" if mean else "max")
        factor = 1 / (h * w)
        b.call(over_all_pixels, b.flat(x), b.flat(y), b.constant(kernels), c, factor)
    elif y.size:
        b.call_numpy(np.ndarray.fill, y, math.nan if mean else -math.inf)
    return y


@kernel("ScaleShift", domain=DOMAIN, dtypes=F32)
def scale_shift(b: Builder, node: Node, x: Operand, factor: Operand, shift: Operand) -> Operand:
    """A factor and a summand per channel, then an activation."""
    y = b.empty(x.shape, x.dtype)
    low, high, act = bounds_of(node.attrs.get("activation"))
    if y.size:
        numbers = low, high, int(act.code), float(act.alpha), float(act.beta)
        b.call(scale_and_shift, b.flat(x), factor, shift, b.flat(y), *numbers)
    return y
