"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, per tensor, axis or block."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.fusion.quantized.quotient import quotient_type, refused_quotient
from partita.lowering.geometry.axes import axis_of
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import broadcast, emit_broadcast
from partita_cpu.kernels.elementwise.cast import NARROW, convert, emit_cast, onnx_dtype
from partita_cpu.kernels.half import float32_of, narrow
from partita_cpu.kernels.operator_table import F32, HALVES, DTypes, kernel
from partita_cpu.kernels.reduction.reduce import reduce_axes
from partita_cpu.scalar.instructions import round_even

INT32 = np.dtype(np.int32)
QUANTIZED: DTypes = frozenset(
    np.dtype(t) for t in (np.int8, np.uint8, np.int16, np.uint16, np.int32)
)
SUB_BYTE = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
"""Least and largest value of the types of which several share a byte."""


class Extents(NamedTuple):
    """Sizes of a tensor about an axis: before it, along it, behind it."""

    outer: int
    channels: int
    n: int


class Levels(NamedTuple):
    """The least and the largest level of a quantized type, as float32."""

    low: Any
    high: Any


def levels_of_type(dtype: np.dtype[Any]) -> Levels:
    """Those of an integer type."""
    limits = np.iinfo(dtype)
    return Levels(np.float32(limits.min), np.float32(limits.max))


@loop(inline=True)
def _level(x: Any, scale: Any, zero: Any, levels: Levels) -> Any:
    """``round(x / scale) + zero``, saturated."""
    value = round_even(x / scale) + zero
    value = levels.low if value < levels.low else value
    return np.int32(levels.high if value > levels.high else value)


@loop
def quantize(
    x: Any, scales: Any, zeros: Any, y: Any, extents: Extents, levels: Levels, tid: int, nt: int
) -> None:
    """``y = round(x / scale) + zero``, saturated; one scale per channel of n elements.

    Args:
        x: (outer, channels, n) floats, flat.
        scales: One for each channel.
        zeros: One for each channel, of y's type.
        y: Output, as x.
        extents: Outer, channels and n.
        levels: The least and the largest level.
        tid: This thread.
        nt: All threads; they share elements.
    """
    outer, channels, n = extents
    if n == 1:
        for o in range(outer * tid // nt, outer * (tid + 1) // nt):
            source = x[o * channels : (o + 1) * channels]
            target = y[o * channels : (o + 1) * channels]
            for c in range(target.size):
                target[c] = _level(source[c], scales[c], np.float32(zeros[c]), levels)
        return
    total = outer * channels * n
    at, end = total * tid // nt, total * (tid + 1) // nt
    while at < end:
        plane = at // n
        stop = min((plane + 1) * n, end)
        scale = scales[plane % channels]
        zero = np.float32(zeros[plane % channels])
        source, target = x[at:stop], y[at:stop]
        for i in range(target.size):
            target[i] = _level(source[i], scale, zero, levels)
        at = stop


@loop(inline=True)
def _number(level: Any, scale: Any, zero: Any) -> Any:
    """``(level - zero) * scale``."""
    return np.float32(np.int32(np.int32(level) - zero)) * scale


@loop
def dequantize(
    x: Any, scales: Any, zeros: Any, y: Any, extents: Extents, tid: int, nt: int
) -> None:
    """``y = (x - zero) * scale``; one scale per channel of n elements.

    Args:
        x: (outer, channels, n) levels, flat.
        scales: One for each channel.
        zeros: One for each channel, of x's type.
        y: Output float32, as x.
        extents: Outer, channels and n.
        tid: This thread.
        nt: All threads; they share elements.
    """
    outer, channels, n = extents
    if n == 1:
        for o in range(outer * tid // nt, outer * (tid + 1) // nt):
            source = x[o * channels : (o + 1) * channels]
            target = y[o * channels : (o + 1) * channels]
            for c in range(target.size):
                target[c] = _number(source[c], scales[c], np.int32(zeros[c]))
        return
    total = outer * channels * n
    at, end = total * tid // nt, total * (tid + 1) // nt
    while at < end:
        plane = at // n
        stop = min((plane + 1) * n, end)
        scale = scales[plane % channels]
        zero = np.int32(zeros[plane % channels])
        source, target = x[at:stop], y[at:stop]
        for i in range(target.size):
            target[i] = _number(source[i], scale, zero)
        at = stop


def quantize_narrow(x: Array, scales: Array, zeros: Array, y: Array, saturate: bool) -> None:
    """QuantizeLinear to a storage type; ``scales`` and ``zeros`` broadcast with ``x``."""
    name = y.dtype.name
    with np.errstate(all="ignore"):
        value = x / scales
        if name in SUB_BYTE:
            low, high = SUB_BYTE[name]
            value = np.clip(np.rint(value) + zeros.astype(np.float32), low, high)
            y[...] = value.astype(np.int8).astype(y.dtype)
        else:
            convert(value + zeros.astype(np.float32), y, saturate)


def dequantize_narrow(x: Array, scales: Array, zeros: Array, y: Array) -> None:
    """DequantizeLinear from 8-bit floats and other storage types, by broadcasting."""
    np.multiply(x.astype(np.float32) - zeros.astype(np.float32), scales, out=y)


def _repeat_blocks(x: Array, y: Array, axis: int, block: int) -> None:
    block = min(block, y.shape[axis])  # a block may be longer than memory
    y[...] = np.repeat(x, block, axis)[tuple(slice(n) for n in y.shape)]


class Grid:
    """Which scale belongs to which element of a tensor.

    Attributes:
        extents: Channel c of n elements has scale c.
        repeat: Axis and block size where scales are per block and must be repeated, else ``None``.
        shape: Shape in which a scale per channel broadcasts with the tensor.
    """

    def __init__(self, b: Builder, node: Node, x: Operand, scale: Operand) -> None:
        block = int(node.attrs.get("block_size", 0))
        self.repeat: tuple[int, int] | None = None
        if scale.size == 1 and not (block and scale.ndim):
            self.extents = Extents(1, 1, x.size)
            self.shape: tuple[int, ...] = ()
            return
        axis = axis_of(b.node, int(node.attrs.get("axis", 1)), x.ndim)
        if block:
            self.repeat = (axis, block)
            self.extents = Extents(1, x.size, 1)
            self.shape = x.shape
            return
        if scale.size != x.shape[axis]:
            raise OperandError(
                f"Operation '{node.name}' ({node.model_kind}) has {scale.size} scales for axis "
                f"{axis} of a tensor of shape {list(x.shape)}; it must have one per index of that "
                "axis."
            )
        before, behind = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        self.extents = Extents(before, x.shape[axis], behind)
        self.shape = (x.shape[axis], *[1] * (x.ndim - axis - 1))

    def spread(self, b: Builder, parameter: Operand, x: Operand) -> Operand:
        """Scales or zero points, one per channel of ``extents``."""
        if self.repeat is None:
            return b.flat(parameter)
        full = b.empty(x.shape, parameter.dtype)
        b.call_numpy(_repeat_blocks, parameter, full, *self.repeat)
        return b.flat(full)


def emit_quantize(
    b: Builder,
    x: Operand,
    scales: Operand,
    zeros: Operand,
    y: Operand,
    extents: Extents,
) -> None:
    """Records `quantize` of float32 to 8 or 16 bits.

    Args:
        b: Records it.
        x: Numbers.
        scales: One for each channel.
        zeros: One for each channel, of y's type.
        y: What is written.
        extents: Which elements belong to a channel.
    """
    if y.size:
        args = (b.flat(x), b.flat(scales), b.flat(zeros), b.flat(y))
        b.call(quantize, *args, extents, levels_of_type(y.dtype))


def emit_dequantize(
    b: Builder,
    x: Operand,
    scales: Operand,
    zeros: Operand | None,
    extents: Extents | None = None,
) -> Operand:
    """Records `dequantize` to float32; with one scale for all unless ``extents`` say otherwise."""
    y = b.empty(x.shape, np.float32)
    if zeros is None:
        zeros = b.constant(np.zeros(scales.size, x.dtype))
    if y.size:
        args = (b.flat(x), b.flat(scales), b.flat(zeros), b.flat(y))
        b.call(dequantize, *args, extents or Extents(1, 1, x.size))
    return y


@kernel(
    "QuantizeLinear",
    dtypes={0: F32 | HALVES | {INT32}, 1: F32 | HALVES | {INT32}, 2: QUANTIZED | NARROW},
    check=refused_quotient,
)
@kernel(
    "QuantizeLinear",
    domain="com.microsoft",
    dtypes={0: F32 | HALVES, 1: F32 | HALVES, 2: QUANTIZED | NARROW},
)
def quantize_linear(
    b: Builder, node: Node, x: Operand, scale: Operand, zero: Operand | None = None
) -> Operand:
    """Rounding to a grid of integers (ties to even) or to 8-bit floats."""
    kind = np.dtype(np.uint8)
    if zero is not None:
        kind = zero.dtype
    elif node.attrs.get("output_dtype", 0):
        kind = onnx_dtype(node.attrs["output_dtype"])
    y = b.empty(x.shape, kind)
    if y.size == 0:
        return y
    grid = Grid(b, node, x, scale)
    zero = zero if zero is not None else b.constant(np.zeros(scale.shape, kind))
    quotient = quotient_type(node, scale.dtype)
    if quotient in HALVES:
        x, scale = (emit_cast(b, operand, quotient) for operand in (x, scale))
    x, scale = (emit_cast(b, operand, np.float32) for operand in (x, scale))
    scales, zeros = grid.spread(b, scale, x), grid.spread(b, zero, x)
    if quotient in HALVES:
        x, scales = _rounded_quotients(b, x, scales, grid.shape, quotient)
    if kind in NARROW:
        scales, zeros = b.view(scales, grid.shape), b.view(zeros, grid.shape)
        saturate = bool(node.attrs.get("saturate", 1))
        b.call_numpy(quantize_narrow, x, scales, zeros, y, saturate)
    else:
        emit_quantize(b, x, scales, zeros, y, grid.extents)
    return y


_divide = broadcast(operator.truediv)


def _rounded_quotients(
    b: Builder, x: Operand, scales: Operand, shape: tuple[int, ...], kind: np.dtype[Any]
) -> tuple[Operand, Operand]:
    """``x / scales`` rounded to a 16-bit float, and the scales of 1 that are left to divide by.

    Args:
        b: Records it.
        x: float32 numbers that the 16-bit float holds.
        scales: float32, flat, of the same kind.
        shape: In which they broadcast with x.
        kind: The 16-bit float.
    """
    y = b.empty(x.shape, np.float32)
    emit_broadcast(b, _divide, [x, b.view(scales, shape)], y)
    ones = b.table(scales.shape, np.float32, np.ones, scales.shape, np.float32)
    return emit_cast(b, emit_cast(b, y, kind), np.float32), ones


@kernel("DequantizeLinear", dtypes={0: QUANTIZED | NARROW, 1: F32 | HALVES, 2: QUANTIZED | NARROW})
@kernel(
    "DequantizeLinear",
    domain="com.microsoft",
    dtypes={0: QUANTIZED | NARROW, 1: F32 | HALVES, 2: QUANTIZED | NARROW},
)
def dequantize_linear(
    b: Builder, node: Node, x: Operand, scale: Operand, zero: Operand | None = None
) -> Operand:
    """From the grid back to floats of the type of the scale."""
    kind = scale.dtype
    if node.attrs.get("output_dtype", 0):
        kind = onnx_dtype(node.attrs["output_dtype"])
    if x.size == 0:
        return b.empty(x.shape, kind)
    grid = Grid(b, node, x, scale)
    if x.dtype.name in SUB_BYTE:
        x = emit_cast(b, x, np.int8)
        zero = None if zero is None else emit_cast(b, zero, np.int8)
    zero = zero if zero is not None else b.constant(np.zeros(scale.shape, x.dtype))
    scales, zeros = grid.spread(b, float32_of(b, scale), x), grid.spread(b, zero, x)
    if x.dtype in NARROW:
        y = b.empty(x.shape, np.float32)
        scales, zeros = b.view(scales, grid.shape), b.view(zeros, grid.shape)
        b.call_numpy(dequantize_narrow, x, scales, zeros, y)
    else:
        y = emit_dequantize(b, x, scales, zeros, grid.extents)
    return narrow(b, y, kind) if kind in HALVES else emit_cast(b, y, kind)


@loop
def choose_grid(top: Any, bottom: Any, scale: Any, zero: Any, tid: int, nt: int) -> None:
    """Scale and zero point for uint8 so that the range of a tensor, and 0, are on the grid.

    Args:
        top: float32 [1]: its largest element.
        bottom: float32 [1]: its smallest.
        scale: Receives float32 [1].
        zero: Receives uint8 [1].
        tid: This thread; the first one does it alone.
        nt: All threads.
    """
    if tid != 0:
        return
    high = max(top[0], np.float32(0))
    low = min(bottom[0], np.float32(0))
    step = np.float32(high - low) / np.float32(255)
    step = np.float32(1) if step == 0 else step
    scale[0] = step
    start = round_even(np.float32(-low) / step)
    zero[0] = np.int32(min(max(start, np.float32(0)), np.float32(255)))


def emit_dynamic_quantize(b: Builder, x: Operand) -> tuple[Operand, Operand, Operand]:
    """uint8 elements, scale and zero point for float32 of any range."""
    y = b.empty(x.shape, np.uint8)
    scale, zero = b.empty((), np.float32), b.empty((), np.uint8)
    everything = frozenset(range(x.ndim))
    top = reduce_axes(b, "ReduceMax", x, everything, False)
    bottom = reduce_axes(b, "ReduceMin", x, everything, False)
    b.call(choose_grid, b.flat(top), b.flat(bottom), b.flat(scale), b.flat(zero))
    emit_quantize(b, x, scale, zero, y, Extents(1, 1, x.size))
    return y, scale, zero


@kernel("DynamicQuantizeLinear", dtypes=F32)
def dynamic_quantize_linear(b: Builder, node: Node, x: Operand) -> tuple[Operand, Operand, Operand]:
    """Quantization to uint8 by the range of the tensor itself."""
    if x.size == 0:
        empty = b.constant(np.zeros(x.shape, np.uint8))
        return empty, b.constant(np.ones((), np.float32)), b.constant(np.zeros((), np.uint8))
    return emit_dynamic_quantize(b, x)
