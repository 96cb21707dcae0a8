"""Quantized softmax of rows, from levels to levels; the powers of a row stay in the cache."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.int8.integer_product import BYTES
from partita_cpu.kernels.int8.product import threads_of
from partita_cpu.kernels.int8.quantization import Levels, levels_of_type
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.scalar.instructions import add_in_any_order, round_even, wide_vectors
from partita_cpu.scalar.math import exp_below_zero


class SoftmaxNumbers(NamedTuple):
    """What levels stand for; each has one element.

    Attributes:
        x_scale: What a step between levels of x is worth, more than 0.
        y_scale: What a step between results is worth, more than 0.
        y_zero: The result that is 0.
    """

    x_scale: KernelArray
    y_scale: KernelArray
    y_zero: KernelArray


@loop
def softmax_levels(
    x: Any,
    numbers: SoftmaxNumbers,
    y: Any,
    memory: Any,
    outer: int,
    n: int,
    levels: Levels,
    tid: int,
    nt: int,
) -> None:
    """``y = round(softmax(x * x_scale) / y_scale) + y_zero``, saturated, of rows of n levels.

    Args:
        x: Rows of levels, flat; their zero point makes no difference.
        numbers: What levels stand for.
        y: Output, as x.
        memory: float32; n for each thread.
        outer: Rows.
        n: Levels of a row.
        levels: The least and the largest level of y.
        tid: This thread.
        nt: All threads; they share rows.
    """
    wide_vectors()
    threads = min(nt, memory.size // n)
    if tid >= threads:
        return
    powers = memory[tid * n : (tid + 1) * n]
    scale, zero = numbers.x_scale[0], np.float32(numbers.y_zero[0])
    for o in range(outer * tid // threads, outer * (tid + 1) // threads):
        source, target = x[o * n : (o + 1) * n], y[o * n : (o + 1) * n]
        top = np.int32(source[0])
        for i in range(n):
            top = max(top, np.int32(source[i]))
        total = np.float32(0)
        for i in range(n):
            value = exp_below_zero(np.float32(np.int32(np.int32(source[i]) - top)) * scale)
            powers[i] = value
            total = add_in_any_order(total, value)
        factor = np.float32(1) / (total * numbers.y_scale[0])
        for i in range(n):
            result = round_even(powers[i] * factor) + zero
            target[i] = np.int32(levels.high if result > levels.high else result)


@kernel("LevelSoftmax", domain="partita", dtypes={0: BYTES, 1: F32, 2: F32, 3: BYTES})
def level_softmax(
    b: Builder, node: Node, x: Operand, x_scale: Operand, y_scale: Operand, y_zero: Operand
) -> Operand:
    """Softmax along the last axis."""
    y = b.empty(x.shape, y_zero.dtype)
    if y.size:
        n = x.shape[-1]
        b.call(
            softmax_levels,
            b.flat(x),
            SoftmaxNumbers(*map(b.flat, (x_scale, y_scale, y_zero))),
            b.flat(y),
            b.empty((threads_of(b) * n,), np.float32),
            math.prod(x.shape[:-1]),
            n,
            levels_of_type(y.dtype),
            work=32 * x.size,
        )
    return y
