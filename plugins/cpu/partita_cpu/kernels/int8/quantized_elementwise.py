"""onnxruntime's element-wise operators, pools, Softmax and Concat on quantized tensors.

Most compute in float32 between dequantizing and quantizing; functions of one level are tables.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.fusion.quantized.flow import ROUNDED_STEPS
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_add_by_factors,
    call_add_bytes,
    call_look_up,
)
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.conv.pooling import average_pool
from partita_cpu.kernels.elementwise.broadcast_loops import (
    broadcast,
    broadcast_shape,
    emit_broadcast,
    emit_map,
    mapped,
    mapped_with,
)
from partita_cpu.kernels.int8.integer_product import BYTES
from partita_cpu.kernels.int8.quantization import (
    Extents,
    Levels,
    emit_dequantize,
    emit_quantize,
    levels_of_type,
)
from partita_cpu.kernels.movement.rearrange import concat
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.kernels.reduction.reduce import reduce_axes
from partita_cpu.kernels.reduction.softmax import softmax
from partita_cpu.llvm.add_int8 import BLOCK
from partita_cpu.llvm.copies.byte_table import BLOCK as TABLE_BLOCK
from partita_cpu.scalar.activations import leaky_relu
from partita_cpu.scalar.instructions import fused_muladd, round_even, wide_vectors
from partita_cpu.scalar.math import sigmoid
from partita_cpu.scalar.sum_factors import SumFactors, sum_factors

_FUNCTIONS = {"QLinearAdd": broadcast(operator.add), "QLinearMul": broadcast(operator.mul)}
_sigmoid, _leaky_relu = mapped(sigmoid), mapped_with(leaky_relu)
_TWO: dict[int, Any] = {0: BYTES, 1: F32, 2: BYTES, 3: BYTES, 4: F32, 5: BYTES, 6: F32, 7: BYTES}
_ONE: dict[int, Any] = {0: BYTES, 1: F32, 2: BYTES, 3: F32, 4: BYTES}


def _quantized(
    b: Builder, x: Operand, scale: Operand, zero: Operand | None, dtype: np.dtype[Any]
) -> Operand:
    y = b.empty(x.shape, dtype)
    if zero is None:
        zero = b.constant(np.zeros((), dtype))
    emit_quantize(b, x, scale, zero, y, Extents(1, 1, x.size))
    return y


_TINY, _HUGE = np.float32(1e-20), np.float32(1e20)
"""Between these a quotient's error can be computed without overflow."""


class Quantizations(NamedTuple):
    """Scales and zero points of two inputs and the result, each of one element."""

    x_scale: KernelArray
    w_scale: KernelArray
    y_scale: KernelArray
    x_zero: KernelArray
    w_zero: KernelArray
    y_zero: KernelArray


@loop
def add_levels(
    x: Any, w: Any, numbers: Quantizations, y: Any, levels: Levels, kernel: int, tid: int, nt: int
) -> None:
    """``y = round((x - x_zero) * x_scale + (w - w_zero) * w_scale) / y_scale) + y_zero``.

    `kernel` is the address of one that adds whole blocks, or 0.

    Args:
        x: Levels of the one input, flat.
        w: Levels of the other.
        numbers: Scales and zero points.
        y: Output, as x.
        levels: The least and the largest level.
        kernel: See above.
        tid: This thread.
        nt: All threads; they share elements.
    """
    x_scale, w_scale, y_scale, x_zero, w_zero, y_zero = numbers
    low, high = levels
    wide_vectors()
    begin, end = x.size * tid // nt, x.size * (tid + 1) // nt
    left, right, target = x[begin:end], w[begin:end], y[begin:end]
    a, b, c = x_scale[0], w_scale[0], y_scale[0]
    a_zero, b_zero, c_zero = np.int32(x_zero[0]), np.int32(w_zero[0]), np.float32(y_zero[0])
    inverse = np.float32(1) / c
    # With the nearest inverse, one step of Markstein's (IBM Journal of Research and Development 34,
    # 1990) gives the same quotient as division, which takes longer, if all is finite.
    if _TINY < c < _HUGE and (abs(a) + abs(b)) * inverse < _HUGE:
        if kernel:
            blocks, level = target.size // BLOCK, np.int64(y_zero[0])
            places = address(left), address(right), address(target), blocks
            bounds = np.float32(low - c_zero), np.float32(high - c_zero)
            zeros = np.int64(a_zero), np.int64(b_zero), level
            call_add_bytes(kernel, (*places, *zeros, a, b, c, inverse, *bounds))
            left, right = left[BLOCK * blocks :], right[BLOCK * blocks :]
            target = target[BLOCK * blocks :]
        for i in range(target.size):
            first = np.float32(np.int32(np.int32(left[i]) - a_zero)) * a
            second = np.float32(np.int32(np.int32(right[i]) - b_zero)) * b
            total = first + second
            about = total * inverse
            quotient = fused_muladd(fused_muladd(-about, c, total), inverse, about)
            value = round_even(quotient) + c_zero
            value = low if value < low else value
            target[i] = np.int32(high if value > high else value)
        return
    for i in range(target.size):
        first = np.float32(np.int32(np.int32(left[i]) - a_zero)) * a
        second = np.float32(np.int32(np.int32(right[i]) - b_zero)) * b
        value = round_even((first + second) / c) + c_zero
        value = low if value < low else value
        target[i] = np.int32(high if value > high else value)


@loop
def add_levels_by_factors(
    x: Any,
    w: Any,
    factors: SumFactors,
    y_zero: Any,
    y: Any,
    levels: Levels,
    kernel: int,
    tid: int,
    nt: int,
) -> None:
    """``y = round(x * factors.x + (w * factors.w + factors.term)) + y_zero``, saturated.

    Args:
        x: Levels of the one input, flat.
        w: Levels of the other.
        factors: See `sum_factors`.
        y_zero: The level of y that is 0; one element.
        y: Output, as x.
        levels: The least and the largest level.
        kernel: The address of one that adds whole blocks, or 0.
        tid: This thread.
        nt: All threads; they share elements.
    """
    low, high = levels
    wide_vectors()
    begin, end = x.size * tid // nt, x.size * (tid + 1) // nt
    left, right, target = x[begin:end], w[begin:end], y[begin:end]
    zero = np.float32(y_zero[0])
    if kernel:
        blocks = target.size // BLOCK
        places = address(left), address(right), address(target), blocks
        numbers = factors.x, factors.w, factors.term, low - zero
        call_add_by_factors(kernel, (*places, *numbers, np.int64(y_zero[0])))
        left, right = left[BLOCK * blocks :], right[BLOCK * blocks :]
        target = target[BLOCK * blocks :]
    for i in range(target.size):
        total = fused_muladd(np.float32(right[i]), factors.w, factors.term)
        value = round_even(fused_muladd(np.float32(left[i]), factors.x, total)) + zero
        value = low if value < low else value
        target[i] = np.int32(high if value > high else value)


def _known_factors(
    b: Builder, scales: Sequence[Operand], zeros: Sequence[Operand], dtype: np.dtype[Any]
) -> SumFactors | None:
    """`sum_factors` of what is known before the run; ``None`` if something is not."""
    if any(operand.const is None for operand in (*scales, *zeros)):
        return None
    of_x, of_w, of_y = (float(b.value(scale).item()) for scale in scales)
    x_zero, w_zero, y_zero = (int(b.value(zero).item()) for zero in zeros)
    low = int(np.iinfo(dtype).min)
    return sum_factors((of_x, of_w, of_y), (x_zero, w_zero, y_zero), low)


@kernel("QLinearAdd", "QLinearMul", domain="com.microsoft", dtypes=_TWO)
def quantized_binary(
    b: Builder,
    node: Node,
    x: Operand,
    x_scale: Operand,
    x_zero: Operand | None,
    w: Operand,
    w_scale: Operand,
    w_zero: Operand | None,
    y_scale: Operand,
    y_zero: Operand | None = None,
) -> Operand:
    """Sum or product with broadcasting.

    Where a constant number is added, half of all results may lie in the middle of two levels: with
    the scales of ``Erf(x) + 1``, for one, that is so by half a level. Rounding the steps to float32
    then decides; such sums are computed in float64, which has the quotients exactly. A sum that is
    written as DequantizeLinear, Add and QuantizeLinear is to be rounded after each of them.
    """
    shape = broadcast_shape(b, [x, w])
    one_of_two = [part.const for part in (x, w) if part.const is not None and part.const.size == 1]
    if node.op_type == "QLinearAdd" and one_of_two and not node.attrs.get(ROUNDED_STEPS):
        sums = b.empty(shape, x.dtype)
        b.call_numpy(_add_exactly, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, sums)
        return sums
    if node.op_type == "QLinearAdd" and x.size and x.size == w.size == math.prod(shape):
        y = b.empty(shape, x.dtype)
        zeros = [
            b.constant(np.zeros(1, x.dtype)) if z is None else z for z in (x_zero, w_zero, y_zero)
        ]
        scales, policy = (x_scale, w_scale, y_scale), native_policy(b.options)
        known = {} if policy is None else addresses(policy.level)
        factors = _known_factors(b, scales, zeros, x.dtype)
        operands, levels = (b.flat(x), b.flat(w)), levels_of_type(x.dtype)
        if factors is not None:
            adder = known.get(f"add_{x.dtype.name}_by_factors", 0)
            args = *operands, factors, b.flat(zeros[2]), b.flat(y), levels, adder
            b.call(add_levels_by_factors, *args)
            return y
        numbers = Quantizations(*map(b.flat, (*scales, *zeros)))
        adder = known.get(f"add_{x.dtype.name}", 0)
        b.call(add_levels, *operands, numbers, b.flat(y), levels, adder)
        return y
    left, right = emit_dequantize(b, x, x_scale, x_zero), emit_dequantize(b, w, w_scale, w_zero)
    result = b.empty(shape, np.float32)
    emit_broadcast(b, _FUNCTIONS[node.op_type], [left, right], result)
    return _quantized(b, result, y_scale, y_zero, x.dtype)


def _add_exactly(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    w: Array,
    w_scale: Array,
    w_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None,
    y: Array,
) -> None:
    """As :func:`add_levels` has it, in float64 and with broadcasting.

    Args:
        x: Levels.
        x_scale: Their scale.
        x_zero: Their zero point; None for 0.
        w: Other levels.
        w_scale: Their scale.
        w_zero: Their zero point; None for 0.
        y_scale: The result's scale.
        y_zero: The result's zero point; None for 0.
        y: Gets the levels.
    """
    terms = [
        (part.astype(np.float64) - _level(zero)) * np.float64(scale.item())
        for part, scale, zero in ((x, x_scale, x_zero), (w, w_scale, w_zero))
    ]
    limits = np.iinfo(y.dtype)
    with np.errstate(all="ignore"):
        total = np.rint((terms[0] + terms[1]) / np.float64(y_scale.item())) + _level(y_zero)
        y[...] = np.clip(total, limits.min, limits.max)


def _level(zero: Array | None) -> float:
    return 0.0 if zero is None else float(zero.item())


def _between_levels(compute: Callable[[Builder, Node, Operand], Operand]) -> Callable[..., Operand]:
    """What records an operator on levels, of what records it on the numbers that they stand for."""

    def emit(
        b: Builder,
        node: Node,
        x: Operand,
        x_scale: Operand,
        x_zero: Operand | None,
        y_scale: Operand,
        y_zero: Operand | None = None,
    ) -> Operand:
        real = emit_dequantize(b, x, x_scale, x_zero)
        return _quantized(b, compute(b, node, real), y_scale, y_zero, x.dtype)

    return emit


@kernel("QLinearSigmoid", "QLinearLeakyRelu", domain="com.microsoft", dtypes=_ONE)
@_between_levels
def quantized_activation(b: Builder, node: Node, real: Operand) -> Operand:
    """Sigmoid or LeakyRelu."""
    if node.op_type == "QLinearSigmoid":
        return emit_map(b, _sigmoid, real)
    alpha = np.float32(node.number("alpha", 0.01))
    return emit_map(b, _leaky_relu, real, None, alpha, alpha)


@kernel("QLinearGlobalAveragePool", domain="com.microsoft", dtypes=_ONE)
@_between_levels
def quantized_global_average(b: Builder, node: Node, real: Operand) -> Operand:
    """The mean over all spatial axes, which are the last or the middle ones."""
    first = 1 if node.attrs.get("channels_last", 0) else 2
    return reduce_axes(b, "ReduceMean", real, frozenset(range(first, first + real.ndim - 2)))


def _means_last(node: Node) -> Reason | None:
    if node.attrs.get("channels_last", 0):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "channels come last")
    return None


@kernel("QLinearAveragePool", domain="com.microsoft", dtypes=_ONE, check=_means_last)
@_between_levels
def quantized_average_pool(b: Builder, node: Node, real: Operand) -> Operand:
    """The mean of each window."""
    mean: Operand = average_pool(b, node, real)
    return mean


@kernel("QLinearSoftmax", domain="com.microsoft", dtypes=_ONE)
@_between_levels
def quantized_softmax(b: Builder, node: Node, real: Operand) -> Operand:
    """Softmax, as the opset that an attribute names defines it."""
    meant = Node("Softmax", (), (), node.attrs, version=node.attrs["opset"], name=node.name)
    shares: Operand = softmax(b, meant, real)
    return shares


@kernel("QLinearConcat", domain="com.microsoft", dtypes={0: F32, 1: BYTES})
def quantized_concat(
    b: Builder, node: Node, y_scale: Operand, y_zero: Operand, *parts: Operand
) -> Operand:
    """Tensors one after another, each with its scale and zero point."""
    groups = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    levels = [
        x
        if _is_same(b, scale, y_scale) and _is_same(b, zero, y_zero)
        else _quantized(b, emit_dequantize(b, x, scale, zero), y_scale, y_zero, y_zero.dtype)
        for x, scale, zero in groups
    ]
    return concat(b, node, *levels)


def _is_same(b: Builder, one: Operand, other: Operand) -> bool:
    """Whether both are the same number, as far as that is known now."""
    if one.const is None or other.const is None or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(b.value(one).ravel(), b.value(other).ravel()))


@loop
def look_up(x: Any, table: Any, y: Any, kernel: int, tid: int, nt: int) -> None:
    """``y = table[x]``.

    Args:
        x: Bytes, flat; the sign of int8 is no sign here.
        table: A result for each of the 256 bytes, 0 to 255.
        y: Output, as x.
        kernel: The address of one that looks up whole blocks, or 0.
        tid: This thread.
        nt: All threads; they share elements.
    """
    begin, end = x.size * tid // nt, x.size * (tid + 1) // nt
    source, target = x[begin:end], y[begin:end]
    if kernel:
        blocks = target.size // TABLE_BLOCK
        call_look_up(kernel, (address(source), address(table), address(target), blocks))
        source, target = source[TABLE_BLOCK * blocks :], target[TABLE_BLOCK * blocks :]
    for i in range(target.size):
        target[i] = table[np.uint8(source[i])]


@kernel("LevelTable", domain="partita", dtypes=BYTES)
def level_table(b: Builder, node: Node, x: Operand, table: Operand) -> Operand:
    """A function of each level, which a table holds."""
    y = b.empty(x.shape, table.dtype)
    if y.size:
        policy = native_policy(b.options)
        kernel = 0 if policy is None else addresses(policy.level).get("look_up_bytes", 0)
        b.call(look_up, b.flat(x), b.flat(table), b.flat(y), kernel)
    return y
