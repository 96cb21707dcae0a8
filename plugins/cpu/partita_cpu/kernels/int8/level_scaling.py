"""Quantized normalization: a factor and a term per channel, from levels to levels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.int8.integer_product import BYTES
from partita_cpu.kernels.int8.quantization import Extents, Levels, levels_of_type
from partita_cpu.kernels.nhwc.placement import DOMAIN
from partita_cpu.kernels.operator_table import F32, kernel, with_inputs
from partita_cpu.scalar.instructions import fused_muladd, round_even, wide_vectors


class ChannelScaling(NamedTuple):
    """Numbers of `scale_levels`.

    Attributes:
        x_zero: The level of x that is 0; one element.
        factors: By channel, from steps of x to steps of y.
        terms: By channel, in steps of y.
        y_zero: The result that is 0; one element.
    """

    x_zero: KernelArray
    factors: KernelArray
    terms: KernelArray
    y_zero: KernelArray


@loop(inline=True)
def _scaled(level: Any, zeros: Any, factor: Any, term: Any, levels: Levels) -> Any:
    """One result; `zeros`: those of x and y."""
    steps = np.float32(np.int32(np.int32(level) - zeros[0]))
    result = round_even(fused_muladd(steps, factor, term)) + zeros[1]
    result = levels.low if result < levels.low else result
    return np.int32(levels.high if result > levels.high else result)


@loop
def scale_levels(
    x: Any, scaling: ChannelScaling, y: Any, extents: Extents, levels: Levels, tid: int, nt: int
) -> None:
    """``y = round((x - x_zero) * factor + term) + y_zero``, saturated.

    Args:
        x: (outer, channels, n) levels, flat.
        scaling: The numbers.
        y: Output, as x.
        extents: Outer, channels and n; n is 1 where channels are last.
        levels: The least and the largest level.
        tid: This thread.
        nt: All threads; they share rows of channels, or planes.
    """
    outer, channels, n = extents
    wide_vectors()
    factors, terms = scaling.factors, scaling.terms
    zeros = np.int32(scaling.x_zero[0]), np.float32(scaling.y_zero[0])
    if n == 1:
        for o in range(outer * tid // nt, outer * (tid + 1) // nt):
            before = x[o * channels : (o + 1) * channels]
            after = y[o * channels : (o + 1) * channels]
            for c in range(after.size):
                after[c] = _scaled(before[c], zeros, factors[c], terms[c], levels)
        return
    planes = outer * channels
    for plane in range(planes * tid // nt, planes * (tid + 1) // nt):
        factor, term = factors[plane % channels], terms[plane % channels]
        before, after = x[plane * n : (plane + 1) * n], y[plane * n : (plane + 1) * n]
        for i in range(after.size):
            after[i] = _scaled(before[i], zeros, factor, term, levels)


_TYPES = {0: BYTES, 1: F32, 2: BYTES, 3: F32, 4: F32, 5: F32, 6: BYTES}


class LevelScaleShiftInputs(NamedTuple):
    """Inputs of LevelScaleShift."""

    x: Operand
    x_scale: Operand
    x_zero: Operand
    factors: Operand
    terms: Operand
    y_scale: Operand
    y_zero: Operand


@kernel("LevelScaleShift", domain="partita", dtypes=_TYPES)
@kernel("LevelScaleShift", domain=DOMAIN, dtypes=_TYPES)
@with_inputs(LevelScaleShiftInputs)
def level_scale_shift(b: Builder, node: Node, inputs: LevelScaleShiftInputs) -> Operand:
    """A normalization of levels; channels are second, or last where images lie so."""
    x, channels = inputs.x, inputs.factors.size
    if node.domain == DOMAIN:
        extents = Extents(math.prod(x.shape[:-1]), channels, 1)
    else:
        extents = Extents(x.shape[0], channels, math.prod(x.shape[2:]))
    y = b.empty(x.shape, x.dtype)
    if y.size:
        x_scale, factors, terms, y_scale = (
            b.value(operand).astype(np.float64).reshape(-1)
            for operand in (inputs.x_scale, inputs.factors, inputs.terms, inputs.y_scale)
        )
        rows = [
            b.constant((row / y_scale).astype(np.float32)) for row in (factors * x_scale, terms)
        ]
        zeros = b.flat(inputs.x_zero), b.flat(inputs.y_zero)
        scaling = ChannelScaling(zeros[0], rows[0], rows[1], zeros[1])
        b.call(scale_levels, b.flat(x), scaling, b.flat(y), extents, levels_of_type(x.dtype))
    return y
