"""Matrix products and convolutions of 8-bit integers.

Products of several matrices run on float32 BLAS: two differences of 8-bit integers multiply to at
most 255 * 255, so 256 products add up exactly. Longer sums are added in int32 piece by piece.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.transformed_weights import Form
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.conv.convolution import conv
from partita_cpu.kernels.elementwise.broadcast_loops import broadcast, emit_broadcast
from partita_cpu.kernels.elementwise.cast import emit_cast
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.int8.byte_tiles import Kind
from partita_cpu.kernels.int8.convolution_windows import emit_byte_convolution
from partita_cpu.kernels.int8.product import Result, as_is, emit_byte_product, emit_rows
from partita_cpu.kernels.int8.quantization import (
    Extents,
    Levels,
    emit_dynamic_quantize,
    levels_of_type,
)
from partita_cpu.kernels.linalg.matmul import product
from partita_cpu.kernels.movement.rearrange import expanded
from partita_cpu.kernels.operator_table import F32, HALVES, DTypes, kernel, with_inputs
from partita_cpu.scalar.instructions import round_even
from partita_cpu.threads import openblas

BYTES: DTypes = frozenset({np.dtype(np.int8), np.dtype(np.uint8)})
EXACT_TERMS = 256
"""Products of two 9-bit integers whose sum float32 always holds exactly (2**24 / 255**2)."""


@register_jitable
def difference(a: Any, b: Any) -> Any:
    """``a - b`` of 8-bit integers as float32."""
    return np.float32(np.int32(np.int32(a) - np.int32(b)))


_difference = broadcast(difference)


def _without_zero(b: Builder, x: Operand, zero: Operand | None, shape: Sequence[int]) -> Operand:
    """``x`` less its zero point, as float32; ``shape`` is the zero point's for broadcasting."""
    if zero is None or (zero.const is not None and not zero.const.any()):
        if x.const is not None:
            form = Form(np.float32, x.shape)
            return b.prepack(x, "float32", lambda array: array.astype(np.float32), form=form)
        return emit_cast(b, x, np.float32)
    zero = b.view(zero, shape) if zero.size > 1 else b.view(zero, ())
    if x.const is not None and zero.const is not None:
        offset = zero.const.astype(np.float32)
        key = f"float32 less {offset.shape} {offset.tobytes().hex()}"
        form = Form(np.float32, np.broadcast_shapes(x.shape, offset.shape))
        return b.prepack(x, key, lambda array: (array - offset).astype(np.float32), form=form)
    y = b.empty(x.shape, np.float32)
    emit_broadcast(b, _difference, [x, zero], y)
    return y


def integer_matmul(x: Array, w: Array, y: Array) -> None:
    """``y = x @ w`` in int32, for whole numbers of 9 bits in float32."""
    terms = x.shape[-1]
    matrix = w.reshape(-1, 1) if w.ndim == 1 else w
    result = y.reshape(*y.shape, 1) if w.ndim == 1 else y
    for start in range(0, terms, EXACT_TERMS):
        piece = slice(start, min(start + EXACT_TERMS, terms))
        part = openblas.matmul(x[..., piece], matrix[..., piece, :])
        if start == 0:
            np.copyto(result, part, casting="unsafe")
        else:
            np.add(result, part.astype(np.int32), out=result)


def _left_shape(x: Operand, zero: Operand | None) -> tuple[int, ...]:
    """A zero point per row broadcasts over columns."""
    if zero is None or zero.size == 1 or zero.ndim > 1:
        return () if zero is None else zero.shape
    return (zero.size, 1) if x.ndim > 1 else (zero.size,)


def _is_one_product(x: Operand, w: Operand, x_zero: Operand | None) -> bool:
    """Whether a product is one of rows with one matrix."""
    rows = x.size // max(x.shape[-1], 1)
    return w.ndim <= 2 and (x_zero is None or x_zero.size in (1, rows))


def emit_integer_product(
    b: Builder, x: Operand, w: Operand, x_zero: Operand | None, w_zero: Operand | None
) -> Operand:
    """The int32 matrix product of 8-bit tensors less their zero points."""
    if _is_one_product(x, w, x_zero):
        matrix = b.view(w, (w.size, 1)) if w.ndim == 1 else w
        y = emit_byte_product(b, x, matrix, x_zero, w_zero)
        return b.view(y, y.shape[:-1]) if w.ndim == 1 else y
    left = _without_zero(b, x, x_zero, _left_shape(x, x_zero))
    right = _without_zero(b, w, w_zero, () if w_zero is None else w_zero.shape)
    terms = x.shape[-1]
    if terms <= EXACT_TERMS:
        return emit_cast(b, product(b, left, right), np.int32)
    shape = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    shape += x.shape[-2:-1] if x.ndim > 1 else ()
    shape += w.shape[-1:] if w.ndim > 1 else ()
    y = b.empty(shape, np.int32)
    b.call_numpy(integer_matmul, left, right, y, work=y.size * terms, exec_type="blas")
    return y


@kernel("MatMulInteger", dtypes=BYTES)
def matmul_integer(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    x_zero: Operand | None = None,
    w_zero: Operand | None = None,
) -> Operand:
    """The matrix product of 8-bit integers in int32."""
    return emit_integer_product(b, x, w, x_zero, w_zero)


@loop
def scale_columns(
    x: Any,
    row_scale: Any,
    column_scales: Any,
    bias: Any,
    y: Any,
    rows: int,
    n: int,
    tid: int,
    nt: int,
) -> None:
    """``y = x * (row_scale * column_scale) + bias`` for rows of n."""
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source, target = x[row * n : (row + 1) * n], y[row * n : (row + 1) * n]
        scale = row_scale[0]
        if column_scales.size == 1:
            factor = scale * column_scales[0]
            for i in range(target.size):
                target[i] = np.float32(source[i]) * factor + bias[i]
        else:
            for i in range(target.size):
                target[i] = np.float32(source[i]) * (scale * column_scales[i]) + bias[i]


def _emit_scaled(
    b: Builder,
    x: Operand,
    w: Operand,
    zeros: tuple[Operand | None, Operand | None],
    scales: tuple[Operand, Operand],
    bias: Operand | None,
) -> Operand:
    """The product of bytes times a scale of x and one, or one per column, of w."""
    if w.ndim == 2 and scales[1].size in (1, w.shape[1]) and _is_one_product(x, w, zeros[0]):
        none = b.constant(np.zeros(1, np.int32))
        term = b.zeros(w.shape[1], np.float32) if bias is None else bias
        result = Result(Kind.FLOATS, np.float32, *scales, term, none)
        return emit_byte_product(b, x, w, *zeros, result)
    return _scaled(b, emit_integer_product(b, x, w, *zeros), *scales, bias)


def _scaled(
    b: Builder, sums: Operand, x_scale: Operand, w_scale: Operand, bias: Operand | None
) -> Operand:
    """int32 sums as float32, with one scale for x and one, or one per column, for w."""
    y = b.empty(sums.shape, np.float32)
    n = sums.shape[-1] if sums.ndim else 1
    if y.size == 0:
        return y
    if w_scale.size not in (1, n):
        # Scales per column of several matrices.
        combined = b.empty(np.broadcast_shapes(x_scale.shape, w_scale.shape), np.float32)
        emit_broadcast(b, _times, [x_scale, w_scale], combined)
        emit_broadcast(b, _times_whole, [sums, combined], y)
        return y
    terms = b.zeros(n, np.float32) if bias is None else expanded(b, b.flat(bias), (n,))
    args = (b.flat(sums), b.flat(x_scale), b.flat(w_scale), terms, b.flat(y))
    b.call(scale_columns, *args, y.size // n, n)
    return y


@register_jitable
def times_whole(a: Any, b: Any) -> Any:
    """An int32 times a float32."""
    return np.float32(a) * b


_times, _times_whole = broadcast(operator.mul), broadcast(times_whole)


_TO_FLOAT = dict.fromkeys((0, 1, 4, 5), BYTES) | dict.fromkeys((2, 3, 6), F32)


@kernel("MatMulIntegerToFloat", domain="com.microsoft", dtypes=_TO_FLOAT)
def matmul_integer_to_float(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    x_scale: Operand,
    w_scale: Operand,
    x_zero: Operand | None = None,
    w_zero: Operand | None = None,
    bias: Operand | None = None,
) -> Operand:
    """The scaled matrix product of 8-bit integers in float32."""
    return _emit_scaled(b, x, w, (x_zero, w_zero), (x_scale, w_scale), bias)


_DYNAMIC: dict[int, DTypes] = {0: F32, 1: BYTES, 2: F32, 3: BYTES, 4: F32}


@kernel("DynamicQuantizeMatMul", domain="com.microsoft", dtypes=_DYNAMIC)
def dynamic_quantize_matmul(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    w_scale: Operand,
    w_zero: Operand | None = None,
    bias: Operand | None = None,
) -> Operand:
    """A float matrix, quantized by its range, times 8-bit weights."""
    if x.size == 0:
        return b.constant(np.zeros((*x.shape[:-1], w.shape[-1]), np.float32))
    quantized, scale, zero = emit_dynamic_quantize(b, x)
    return _emit_scaled(b, quantized, w, (zero, w_zero), (scale, w_scale), bias)


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
    """``y = round((x + bias) * scale) + zero``, saturated; bias and scale per channel of n."""
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
    """From sums to levels: one factor, or one per column."""
    return _now_or_later(b, combine_scales, scales, (max(s.size for s in scales[:2]),))


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
    extents: tuple[int, int, int],
) -> Operand:
    y = b.empty(sums.shape, zero.dtype)
    if y.size == 0:
        return y
    factor = factors_of(b, scales)
    channels = extents[1]
    if factor.size not in (1, channels) or (bias is not None and bias.size != channels):
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}) has {factor.size} scales for "
            f"{channels} channels; it must have 1, or one per channel."
        )
    terms = b.zeros(channels, np.int32) if bias is None else b.flat(bias)
    args = (b.flat(sums), terms, factor, b.flat(zero), b.flat(y))
    b.call(requantize, *args, Extents(*extents), levels_of_type(zero.dtype))
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
    scales = x_scale, w_scale, y_scale
    if w.ndim == 2 and w_scale.size in (1, w.shape[1]) and _is_one_product(x, w, x_zero):
        result = levels_of(b, w.shape[1], scales, None, y_zero)
        return emit_byte_product(b, x, w, x_zero, w_zero, result)
    sums = emit_integer_product(b, x, w, x_zero, w_zero)
    n = sums.shape[-1] if sums.ndim else 1
    rows = sums.size // n if n else 0
    extents = (rows, n, 1) if w_scale.size > 1 else (rows, 1, n)
    return _requantized(b, sums, None, scales, y_zero, extents)


def _is_one_group(node: Node, x: Operand, w: Operand) -> bool:
    return bool(node.attrs.get("group", 1) == 1 and x.shape[1] == w.shape[1])


def _integer_conv(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    x_zero: Operand | None,
    w_zero: Operand | None,
) -> Operand:
    """The sums of a convolution of 8-bit tensors: exact, in int32 or a float type."""
    if _is_one_group(node, x, w):
        return emit_byte_convolution(b, node, x, w, x_zero, w_zero)
    shape = () if w_zero is None else (w_zero.size, *[1] * (w.ndim - 1))
    image = _without_zero(b, x, x_zero, ())
    weights = _without_zero(b, w, w_zero, shape)
    if math.prod(w.shape[1:]) > EXACT_TERMS:
        # Longer sums would need more than the 24 bits of float32.
        image, weights = (emit_cast(b, operand, np.float64) for operand in (image, weights))
    sums: Operand = conv(b, node, image, weights)
    return sums


@kernel("ConvInteger", dtypes=BYTES)
def conv_integer(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    x_zero: Operand | None = None,
    w_zero: Operand | None = None,
) -> Operand:
    """The convolution of 8-bit integers in int32."""
    return emit_cast(b, _integer_conv(b, node, x, w, x_zero, w_zero), np.int32)


QUANTIZED_CONV = {**_QUANTIZED_PAIR, 8: frozenset({np.dtype(np.int32)})}


class QuantizedConvInputs(NamedTuple):
    """Inputs of QLinearConv."""

    x: Operand
    x_scale: Operand
    x_zero: Operand
    w: Operand
    w_scale: Operand
    w_zero: Operand
    y_scale: Operand
    y_zero: Operand
    bias: Operand | None = None


@kernel("QLinearConv", dtypes=QUANTIZED_CONV)
@with_inputs(QuantizedConvInputs)
def quantized_conv(b: Builder, node: Node, inputs: QuantizedConvInputs) -> Operand:
    """The convolution of quantized tensors, quantized again."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = inputs
    scales = x_scale, w_scale, y_scale
    if _is_one_group(node, x, w) and w_scale.size in (1, w.shape[0]):
        result = levels_of(b, w.shape[0], scales, bias, y_zero)
        return emit_byte_convolution(b, node, x, w, x_zero, w_zero, result)
    sums = _integer_conv(b, node, x, w, x_zero, w_zero)
    extents = (sums.shape[0], sums.shape[1], math.prod(sums.shape[2:]))
    return _requantized(b, sums, bias, scales, y_zero, extents)


_GEMM = {0: BYTES, 1: F32, 2: BYTES, 3: BYTES, 4: F32, 5: BYTES, 7: F32, 8: BYTES}


def _check_gemm(node: Node) -> Reason | None:
    if node.attrs.get("transA", 0) or node.number("alpha", 1.0) != 1.0:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "transA or alpha is given")
    return None


def columns_of(weights: Array) -> Array:
    """Weights (columns, terms) as a matrix (terms, columns)."""
    return weights.T


class QuantizedGemmInputs(NamedTuple):
    """Inputs of QGemm."""

    x: Operand
    x_scale: Operand
    x_zero: Operand
    w: Operand
    w_scale: Operand
    w_zero: Operand
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
    x, x_scale, x_zero, w, w_scale, w_zero, bias, y_scale, y_zero = inputs
    turned = bool(node.attrs.get("transB", 0))
    columns, terms = w.shape if turned else w.shape[::-1]
    if bias is not None and bias.size != columns:
        bias = b.view(expanded(b, bias, (1, columns)), (columns,))
    if y_scale is None or y_zero is None:
        sums = emit_rows(b, x, w, columns_of if turned else as_is, terms, x_zero, w_zero, None)
        if bias is not None:
            whole = b.empty(sums.shape, np.int32)
            emit_broadcast(b, _plus, [sums, bias], whole)
            sums = whole
        return _scaled(b, sums, x_scale, w_scale, None)
    result = levels_of(b, columns, (x_scale, w_scale, y_scale), bias, y_zero)
    return emit_rows(b, x, w, columns_of if turned else as_is, terms, x_zero, w_zero, result)


_plus = broadcast(operator.add)
