"""8-bit products and convolutions with results in int32 or float32, as MatMulInteger.

Products of several matrices run on float32 BLAS: two differences of 8-bit integers multiply to at
most 255 * 255, so 256 products add up exactly. Longer sums are added in int32 piece by piece.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.transformed_weights import Form
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.conv.convolution import conv
from partita_cpu.kernels.elementwise.broadcast_loops import broadcast, emit_broadcast
from partita_cpu.kernels.elementwise.cast import emit_cast
from partita_cpu.kernels.int8.batched_product import emit_byte_batches, fits_batches
from partita_cpu.kernels.int8.byte_tiles import Kind
from partita_cpu.kernels.int8.convolution_windows import emit_byte_convolution
from partita_cpu.kernels.int8.product import ByteOperands, Result, emit_byte_product
from partita_cpu.kernels.int8.quantization import emit_dynamic_quantize
from partita_cpu.kernels.linalg.matmul import product
from partita_cpu.kernels.movement.rearrange import expanded
from partita_cpu.kernels.operator_table import F32, DTypes, kernel
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


def is_one_product(operands: ByteOperands) -> bool:
    """Whether a product is one of rows with one matrix."""
    x, zero = operands.x, operands.x_zero
    rows = x.size // max(x.shape[-1], 1)
    return operands.w.ndim <= 2 and (zero is None or zero.size in (1, rows))


def emit_integer_product(b: Builder, operands: ByteOperands) -> Operand:
    """The int32 matrix product of 8-bit tensors."""
    x, w, x_zero, w_zero = operands.x, operands.w, operands.x_zero, operands.w_zero
    if is_one_product(operands):
        matrix = b.view(w, (w.size, 1)) if w.ndim == 1 else w
        y = emit_byte_product(b, replace(operands, w=matrix))
        return b.view(y, y.shape[:-1]) if w.ndim == 1 else y
    if fits_batches(operands):
        return emit_byte_batches(b, operands)
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
    return emit_integer_product(b, ByteOperands(x, w, x_zero, w_zero))


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
    """``y = x * (row_scale * column_scale) + bias`` for rows of n.

    Args:
        x: (rows, n) sums of int32, flat.
        row_scale: The scale of the left matrix, of one element.
        column_scales: That of each column of the right one, or one for all.
        bias: Term of each column.
        y: Output float32, as x.
        rows: Rows of x.
        n: Columns of x.
        tid: This thread.
        nt: All threads; they share rows.
    """
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
    b: Builder, operands: ByteOperands, scales: tuple[Operand, Operand], bias: Operand | None
) -> Operand:
    """The product of bytes times a scale of x and one, or one per column, of w."""
    w = operands.w
    if w.ndim == 2 and scales[1].size in (1, w.shape[1]) and is_one_product(operands):
        none = b.constant(np.zeros(1, np.int32))
        term = b.zeros(w.shape[1], np.float32) if bias is None else bias
        result = Result(Kind.FLOATS, np.float32, *scales, term, none)
        return emit_byte_product(b, operands, result)
    if fits_batches(operands) and scales[1].size == 1:
        term = b.zeros(w.shape[-1], np.float32) if bias is None else bias
        none = b.constant(np.zeros(1, np.int32))
        return emit_byte_batches(b, operands, Result(Kind.FLOATS, np.float32, *scales, term, none))
    return scaled_sums(b, emit_integer_product(b, operands), *scales, bias)


def scaled_sums(
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
        emit_broadcast(b, _multiply_integers, [sums, combined], y)
        return y
    terms = b.zeros(n, np.float32) if bias is None else expanded(b, b.flat(bias), (n,))
    args = (b.flat(sums), b.flat(x_scale), b.flat(w_scale), terms, b.flat(y))
    b.call(scale_columns, *args, y.size // n, n)
    return y


@register_jitable
def multiply_integers(a: Any, b: Any) -> Any:
    """An int32 times a float32."""
    return np.float32(a) * b


_times, _multiply_integers = broadcast(operator.mul), broadcast(multiply_integers)


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
    return _emit_scaled(b, ByteOperands(x, w, x_zero, w_zero), (x_scale, w_scale), bias)


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
    return _emit_scaled(b, ByteOperands(quantized, w, zero, w_zero), (scale, w_scale), bias)


def is_one_group(node: Node, x: Operand, w: Operand) -> bool:
    """Whether each output channel of a convolution reads all input channels."""
    return bool(node.attrs.get("group", 1) == 1 and x.shape[1] == w.shape[1])


def integer_conv(b: Builder, node: Node, operands: ByteOperands) -> Operand:
    """The sums of a convolution of 8-bit tensors: exact, in int32 or a float type.

    Args:
        b: Records it.
        node: Has the window and the groups.
        operands: Images (n, channels, ...) and weights (outputs, channels / groups, ...).
    """
    x, w, x_zero, w_zero = operands.x, operands.w, operands.x_zero, operands.w_zero
    if is_one_group(node, x, w):
        return emit_byte_convolution(b, node, operands)
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
    operands = ByteOperands(x, w, x_zero, w_zero)
    return emit_cast(b, integer_conv(b, node, operands), np.int32)
