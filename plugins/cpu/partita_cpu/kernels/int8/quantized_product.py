"""8-bit products and convolutions with quantized results: QLinearMatMul, QLinearConv, QGemm."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import broadcast, emit_broadcast
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.int8.batched_product import emit_byte_batches, fits_batches
from partita_cpu.kernels.int8.byte_tiles import Kind
from partita_cpu.kernels.int8.convolution_windows import emit_byte_convolution
from partita_cpu.kernels.int8.integer_product import (
    BYTES,
    emit_integer_product,
    integer_conv,
    is_one_group,
    is_one_product,
    scaled_sums,
)
from partita_cpu.kernels.int8.product import (
    ByteOperands,
    Result,
    as_is,
    emit_byte_product,
    emit_rows,
)
from partita_cpu.kernels.int8.quantization import (
    Extents,
    Levels,
    levels_of_type,
)
from partita_cpu.kernels.movement.rearrange import expanded
from partita_cpu.kernels.operator_table import F32, HALVES, kernel, with_inputs
from partita_cpu.scalar.instructions import round_even


@loop
def requantize(
    x: Any,
    bias: Any,
    scales: Any,
    zero: Any,
    y: Any,
    extents: Extents,
    levels: Levels,
    tid: int,
    nt: int,
) -> None:
    """``y = round((x + bias) * scale) + zero``, saturated; bias and scale per channel of n.

    Args:
        x: (outer, channels, n) sums of int32, flat.
        bias: Term of each channel, in int32.
        scales: Factor of each channel, or one for all.
        zero: Zero point of y, of one element.
        y: Output levels, as x.
        extents: Outer, channels and n.
        levels: The least and the largest level.
        tid: This thread.
        nt: All threads; they share planes.
    """
    outer, channels, n = extents
    low, high = levels
    planes = outer * channels
    for plane in range(planes * tid // nt, planes * (tid + 1) // nt):
        channel = plane % channels
        scale = scales[channel if scales.size > 1 else 0]
        term = bias[channel]
        offset = np.float32(zero[0])
        source, target = x[plane * n : (plane + 1) * n], y[plane * n : (plane + 1) * n]
        for i in range(target.size):
            value = round_even(np.float32(np.int32(source[i]) + term) * scale) + offset
            value = low if value < low else value
            target[i] = np.int32(high if value > high else value)


def combine_scales(x_scale: Array, w_scale: Array, y_scale: Array, out: Array) -> None:
    """The factor from sums to results: ``x_scale * w_scale / y_scale``."""
    np.divide(x_scale.reshape(-1) * w_scale.reshape(-1), y_scale.reshape(-1), out=out)


def _now_or_later(
    b: Builder, fn: Callable[..., None], operands: Sequence[Operand], shape: tuple[int, ...]
) -> Operand:
    """``fn(*operands, out)`` in float32: at once if all are known, else as a step."""
    if all(operand.const is not None for operand in operands):
        out = np.empty(shape, np.float32)
        fn(*(b.value(operand) for operand in operands), out)
        return b.constant(out)
    result = b.empty(shape, np.float32)
    b.call_numpy(fn, *operands, result)
    return result


def factors_of(b: Builder, scales: Sequence[Operand]) -> Operand:
    """From sums to levels: one factor, or one per column, of which there may be none."""
    sizes = [scale.size for scale in scales[:2]]
    return _now_or_later(b, combine_scales, scales, (max(sizes) if all(sizes) else 0,))


def levels_of(
    b: Builder, columns: int, scales: Sequence[Operand], bias: Operand | None, zero: Operand
) -> Result:
    """Sums of bytes quantized again as soon as they are known."""
    terms = b.zeros(columns, np.int32) if bias is None else bias
    one = b.constant(np.ones(1, np.float32))
    return Result(Kind.LEVELS, zero.dtype, one, factors_of(b, scales), terms, zero)


def _requantized(
    b: Builder,
    sums: Operand,
    bias: Operand | None,
    scales: Sequence[Operand],
    zero: Operand,
    extents: Extents,
) -> Operand:
    """Records how sums become levels.

    Args:
        b: The builder.
        sums: int32.
        bias: A term for each channel.
        scales: Those of the inputs and of the result.
        zero: The result's zero point, of the type that levels have.
        extents: Sizes around channels.
    """
    y = b.empty(sums.shape, zero.dtype)
    if y.size == 0:
        return y
    factor = factors_of(b, scales)
    channels = extents.channels
    if factor.size not in (1, channels) or (bias is not None and bias.size != channels):
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}) has {factor.size} scales for "
            f"{channels} channels; it must have 1, or one per channel."
        )
    terms = b.zeros(channels, np.int32) if bias is None else b.flat(bias)
    args = (b.flat(sums), terms, factor, b.flat(zero), b.flat(y))
    b.call(requantize, *args, extents, levels_of_type(zero.dtype))
    return y


_QUANTIZED_PAIR = {0: BYTES, 1: F32, 2: BYTES, 3: BYTES, 4: F32, 5: BYTES, 6: F32, 7: BYTES}


@kernel("QLinearMatMul", dtypes={**_QUANTIZED_PAIR, **dict.fromkeys((1, 4, 6), F32 | HALVES)})
@through_float32
def quantized_matmul(
    b: Builder,
    node: Node,
    x: Operand,
    x_scale: Operand,
    x_zero: Operand,
    w: Operand,
    w_scale: Operand,
    w_zero: Operand,
    y_scale: Operand,
    y_zero: Operand,
) -> Operand:
    """The matrix product of quantized tensors, quantized again."""
    scales, operands = (x_scale, w_scale, y_scale), ByteOperands(x, w, x_zero, w_zero)
    if w.ndim == 2 and w_scale.size in (1, w.shape[1]) and is_one_product(operands):
        result = levels_of(b, w.shape[1], scales, None, y_zero)
        return emit_byte_product(b, operands, result)
    if w_scale.size == 1 and fits_batches(operands):
        return emit_byte_batches(b, operands, levels_of(b, w.shape[-1], scales, None, y_zero))
    sums = emit_integer_product(b, operands)
    n = sums.shape[-1] if sums.ndim else 1
    rows = sums.size // n if n else 0
    extents = Extents(rows, n, 1) if w_scale.size > 1 else Extents(rows, 1, n)
    return _requantized(b, sums, None, scales, y_zero, extents)


QUANTIZED_CONV = {**_QUANTIZED_PAIR, 8: frozenset({np.dtype(np.int32)})}


@dataclass(frozen=True)
class FactorInputs:
    """The inputs that products and convolutions of quantized tensors have first, in this order.

    Attributes:
        x: Levels of rows or images, uint8 or int8.
        x_scale: Their scale.
        x_zero: Their zero point.
        w: Levels of the weights, uint8 or int8.
        w_scale: Their scale, or one per column or output.
        w_zero: Their zero point, or one per column or output.
    """

    x: Operand
    x_scale: Operand
    x_zero: Operand
    w: Operand
    w_scale: Operand
    w_zero: Operand

    @property
    def operands(self) -> ByteOperands:
        """What is multiplied."""
        return ByteOperands(self.x, self.w, self.x_zero, self.w_zero)


@dataclass(frozen=True)
class QuantizedConvInputs(FactorInputs):
    """Inputs of QLinearConv."""

    y_scale: Operand
    y_zero: Operand
    bias: Operand | None = None

    @property
    def scales(self) -> tuple[Operand, Operand, Operand]:
        """Those of the inputs and of the result, as `factors_of` takes them."""
        return self.x_scale, self.w_scale, self.y_scale


@kernel("QLinearConv", dtypes=QUANTIZED_CONV)
@with_inputs(QuantizedConvInputs)
def quantized_conv(b: Builder, node: Node, inputs: QuantizedConvInputs) -> Operand:
    """The convolution of quantized tensors, quantized again."""
    w, bias, y_zero = inputs.w, inputs.bias, inputs.y_zero
    if is_one_group(node, inputs.x, w) and inputs.w_scale.size in (1, w.shape[0]):
        result = levels_of(b, w.shape[0], inputs.scales, bias, y_zero)
        return emit_byte_convolution(b, node, inputs.operands, result)
    sums = integer_conv(b, node, inputs.operands)
    extents = Extents(sums.shape[0], sums.shape[1], math.prod(sums.shape[2:]))
    return _requantized(b, sums, bias, inputs.scales, y_zero, extents)


LEVEL_CONV = {0: BYTES, 1: F32, 2: BYTES, 3: BYTES, 4: F32, 5: BYTES, 6: F32}


@dataclass(frozen=True)
class LevelConvInputs(FactorInputs):
    """Inputs of LevelConv."""

    bias: Operand | None = None


def floats_of(b: Builder, node: Node, inputs: LevelConvInputs) -> tuple[ByteOperands, Result]:
    """What a LevelConv multiplies, and sums as floats, 0 at least where a Relu was fused."""
    none = b.constant(np.zeros(1, np.int32))
    terms = b.zeros(inputs.w.shape[0], np.float32) if inputs.bias is None else inputs.bias
    positive = bool(node.attrs.get("relu", 0))
    scales = inputs.x_scale, inputs.w_scale
    result = Result(Kind.FLOATS, np.float32, *scales, terms, none, positive)
    return inputs.operands, result


@kernel("LevelConv", domain="partita", dtypes=LEVEL_CONV)
@with_inputs(LevelConvInputs)
def level_conv(b: Builder, node: Node, inputs: LevelConvInputs) -> Operand:
    """The convolution of quantized tensors, of one group, in float32."""
    return emit_byte_convolution(b, node, *floats_of(b, node, inputs))


_GEMM = {0: BYTES, 1: F32, 2: BYTES, 3: BYTES, 4: F32, 5: BYTES, 7: F32, 8: BYTES}


def _check_gemm(node: Node) -> Reason | None:
    if node.attrs.get("transA", 0) or node.number("alpha", 1.0) != 1.0:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "transA or alpha is given")
    return None


def columns_of(weights: Array) -> Array:
    """Weights (columns, terms) as a matrix (terms, columns)."""
    return weights.T


@dataclass(frozen=True)
class QuantizedGemmInputs(FactorInputs):
    """Inputs of QGemm."""

    bias: Operand | None = None
    y_scale: Operand | None = None
    y_zero: Operand | None = None


@kernel(
    "QGemm",
    domain="com.microsoft",
    dtypes={**_GEMM, 6: frozenset({np.dtype(np.int32)})},
    check=_check_gemm,
)
@with_inputs(QuantizedGemmInputs)
def quantized_gemm(b: Builder, node: Node, inputs: QuantizedGemmInputs) -> Operand:
    """The product of quantized matrices and a bias, quantized again or in float32."""
    w, bias, operands = inputs.w, inputs.bias, inputs.operands
    y_scale, y_zero = inputs.y_scale, inputs.y_zero
    transposed = bool(node.attrs.get("transB", 0))
    arrange = columns_of if transposed else as_is
    columns, terms = w.shape if transposed else w.shape[::-1]
    if bias is not None and bias.size != columns:
        bias = b.view(expanded(b, bias, (1, columns)), (columns,))
    if y_scale is None or y_zero is None:
        sums = emit_rows(b, operands, arrange, terms, None)
        if bias is not None:
            whole = b.empty(sums.shape, np.int32)
            emit_broadcast(b, _plus, [sums, bias], whole)
            sums = whole
        return scaled_sums(b, sums, inputs.x_scale, inputs.w_scale, None)
    result = levels_of(b, columns, (inputs.x_scale, inputs.w_scale, y_scale), bias, y_zero)
    return emit_rows(b, operands, arrange, terms, result)


_plus = broadcast(operator.add)
