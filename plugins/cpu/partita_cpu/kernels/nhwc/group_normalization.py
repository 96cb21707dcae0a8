"""GroupNormalization of images with channels last, and InstanceNormalization with it."""

from __future__ import annotations

import functools

import numpy as np

from partita.lowering import (
    NO_ACTIVATION,
    Activation,
    ActivationCode,
    Array,
    Builder,
    Node,
    Operand,
)
from partita_cpu.gemm.fused_activation import activation_kernel, bounds_of
from partita_cpu.jit import llvm_kernel
from partita_cpu.kernels.nhwc.depthwise import channel_slice
from partita_cpu.kernels.nhwc.placement import DOMAIN, HALF, STORED, Place, choice_of
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.llvm.images.group_normalization import normalization_name, sums_name
from partita_cpu.llvm.levels import Level
from partita_cpu.nhwc.group_normalization import (
    GroupFactors,
    Moments,
    PixelEnd,
    channel_moments,
    group_factors,
    normalize_pixels,
)


@kernel("GroupNormalization", domain=DOMAIN, dtypes={0: STORED, 1: F32, 2: F32, 3: STORED})
def group_normalization(
    b: Builder,
    node: Node,
    x: Operand,
    scale: Operand,
    bias: Operand,
    target: Operand | None = None,
) -> Operand:
    """Groups of channels to mean 0 and variance 1, a factor and a term, then an activation."""
    place = Place.of(node, x, target)
    count, pixels, level = place.channels, x.shape[1] * x.shape[2], choice_of(b).level
    y = place.output(b, (*x.shape[:3], count), bool(node.attrs.get("half")))
    if not x.shape[0] * pixels * count:
        return y
    groups = int(node.attrs["groups"])
    channels, every = channel_slice(place, y), x.shape[0] * count
    moments = Moments(
        b.empty((every,), np.float32),
        b.empty((every,), np.float64),
        b.empty((every,), np.float64),
        b.empty((2 * every,), np.float32),
    )
    made = [b.empty((every,), np.float32) for _ in range(3)]
    factors = GroupFactors(made[0], made[1], made[2], b.flat(bias))
    half_in, half_out = x.dtype == HALF, y.dtype == HALF
    sums = b.constant(_kernel(level, sums_name(half_in)))
    normalize = b.constant(_kernel(level, normalization_name(half_in, half_out)))
    end = pixel_end(level, node.attrs.get("activation"), half_out)
    b.call(channel_moments, b.flat(x), moments, sums, pixels, channels)
    b.call(group_factors, moments, b.flat(scale), factors, groups, node.number("epsilon", 1e-5))
    b.call(normalize_pixels, b.flat(x), factors, b.flat(y), normalize, pixels, channels, end)
    return y


def pixel_end(level: Level, activation: Activation | None, half: bool) -> PixelEnd:
    """What normalized elements are bounded by, and what is applied to them then.

    Args:
        level: The instruction set.
        activation: What is asked for; ``None`` for nothing.
        half: Whether results are bfloat16.
    """
    low, high, act = bounds_of(activation)
    slope = 1.0
    if act.code is ActivationCode.LEAKY_RELU:
        slope, act = float(act.alpha), NO_ACTIVATION
    if half:
        return PixelEnd(slope, low, high, activation_kernel(level, act, True), 0, 0.0, 0.0)
    return PixelEnd(slope, low, high, 0, int(act.code), float(act.alpha), float(act.beta))


@functools.cache
def _kernel(level: Level, name: str) -> Array:
    """One of the kernels in an array."""
    return np.array([llvm_kernel.addresses(level, "_normalized_pixels")[name]])
