"""Quantized operators on images with channels last, in domain ``partita.nhwc``.

`passes.nhwc` makes them.
"""

from __future__ import annotations

import math

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.reached_taps import without_padding
from partita.lowering.geometry.windows import resolve
from partita_cpu.gemm.tile_kernels import byte_window_kernels
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.kernels.int8.convolution_groups import emit_groups, has_known_levels
from partita_cpu.kernels.int8.convolution_windows import emit_windows
from partita_cpu.kernels.int8.depthwise_lines import (
    emit_depthwise_lines,
    takes_depthwise_lines,
)
from partita_cpu.kernels.int8.integer_product import BYTES
from partita_cpu.kernels.int8.product import ByteOperands
from partita_cpu.kernels.int8.quantized_product import (
    LEVEL_CONV,
    QUANTIZED_CONV,
    LevelConvInputs,
    QuantizedConvInputs,
    factors_of,
    floats_of,
    levels_of,
)
from partita_cpu.kernels.nhwc.placement import DOMAIN, choice_of
from partita_cpu.kernels.operator_table import kernel, with_inputs
from partita_cpu.nhwc.window_int8 import ByteTaps, largest_bytes, slide_bytes

LARGEST_SUM = 1 << 24
"""Whole numbers that float32 holds exactly."""


def fits_depthwise(node: Node) -> bool:
    """Whether a QLinearConv is depthwise, its sums exact in float32, and its scales known."""
    weights, bias = node.inputs[3], node.input(8)
    if weights is None or weights.const is None or not has_known_levels(node):
        return False
    if weights.const.shape[:2] != (int(node.attrs.get("group", 1)), 1):
        return False
    most: int = 0 if bias is None or bias.const is None else int(np.abs(bias.const).max(initial=0))
    return bool(most + math.prod(weights.const.shape[2:]) * 255 * 255 < LARGEST_SUM)


@kernel("QLinearConv", domain=DOMAIN, dtypes=QUANTIZED_CONV)
@with_inputs(QuantizedConvInputs)
def convolution(b: Builder, node: Node, inputs: QuantizedConvInputs) -> Operand:
    """The convolution of quantized images, quantized again."""
    x, x_zero, bias, y_zero = inputs.x, inputs.x_zero, inputs.bias, inputs.y_zero
    groups = int(node.attrs.get("group", 1))
    if groups == 1 or not fits_depthwise(node):
        result = levels_of(b, inputs.w.shape[0], inputs.scales, bias, y_zero)
        if groups == 1:
            return emit_windows(b, node, inputs.operands, result)
        return emit_groups(b, node, inputs.operands, result, groups)
    window, w = without_padding(b, resolve(node, x.shape[1:3], inputs.w.shape[2:]), inputs.w)
    channels = x.shape[3]
    if not x.shape[0] * window.pixels * channels:
        return b.empty((x.shape[0], *window.out_shape, channels), y_zero.dtype)
    terms = np.zeros(channels, np.int32) if bias is None else b.value(bias)
    factors = np.broadcast_to(b.value(factors_of(b, inputs.scales)), (channels,))
    policy, zeros = choice_of(b), b.value(inputs.w_zero).reshape(-1, 1).astype(np.float32)
    if takes_depthwise_lines(window, w, zeros, policy):
        operands = ByteOperands(x, w, x_zero, inputs.w_zero)
        return emit_depthwise_lines(b, policy, window, operands, (terms, factors, y_zero))
    y = b.empty((x.shape[0], *window.out_shape, channels), y_zero.dtype)

    def taps_first(array: Array) -> Array:
        less = array.reshape(channels, -1).astype(np.float32) - zeros
        return np.ascontiguousarray(less.T).reshape(-1)

    limits = np.iinfo(y.dtype)
    b.call(
        slide_bytes,
        b.flat(x),
        ByteTaps(
            b.prepack(w, ("taps", zeros.tobytes().hex()), taps_first),
            b.constant(terms.astype(np.float32)),
            b.constant(factors),
            b.flat(x_zero),
            b.flat(y_zero),
        ),
        b.flat(y),
        b.constant(byte_window_kernels(policy.level, x.dtype.name)),
        b.constant(window.table),
        b.constant(np.array([limits.min, limits.max, channels], np.int64)),
        work=y.size * window.taps,
    )
    return y


@kernel("LevelConv", domain=DOMAIN, dtypes=LEVEL_CONV)
@with_inputs(LevelConvInputs)
def level_convolution(b: Builder, node: Node, inputs: LevelConvInputs) -> Operand:
    """The convolution of quantized images, in float32."""
    return emit_windows(b, node, *floats_of(b, node, inputs))


@kernel("MaxPoolOfBytes", domain=DOMAIN, dtypes=BYTES)
def largest(b: Builder, node: Node, x: Operand) -> Operand:
    """The largest level of each window."""
    ceil_mode = bool(node.attrs.get("ceil_mode", 0))
    window = resolve(node, x.shape[1:3], node.attrs["kernel_shape"], ceil_mode=ceil_mode)
    y = b.empty((x.shape[0], *window.out_shape, x.shape[3]), x.dtype)
    if y.size:
        lowest, seen = int(np.iinfo(x.dtype).min), window.trimmed
        maximum = addresses(choice_of(b).level).get(f"max_{x.dtype.name}", 0)
        args = b.flat(x), b.flat(y), b.constant(seen.table), x.shape[3], lowest, maximum
        b.call(largest_bytes, *args, work=y.size * seen.taps)
    return y
