"""GroupNormalization of images with channels last, and InstanceNormalization with it."""

from __future__ import annotations

import numpy as np

from partita.lowering import NO_ACTIVATION, Builder, Node, Operand
from partita_cpu.kernels.nhwc.depthwise import channel_slice
from partita_cpu.kernels.nhwc.placement import DOMAIN, Place
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.nhwc.group_normalization import (
    GroupFactors,
    Moments,
    channel_moments,
    group_factors,
    normalize_pixels,
)
from partita_cpu.scalar.activations import ActivationFields


@kernel("GroupNormalization", domain=DOMAIN, dtypes=F32)
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
    count, pixels = place.channels, x.shape[1] * x.shape[2]
    y = place.output(b, (*x.shape[:3], count), False)
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
    act = node.attrs.get("activation") or NO_ACTIVATION
    activation = ActivationFields(int(act.code), float(act.alpha), float(act.beta))
    b.call(channel_moments, b.flat(x), moments, pixels, channels)
    b.call(group_factors, moments, b.flat(scale), factors, groups, node.number("epsilon", 1e-5))
    b.call(normalize_pixels, b.flat(x), factors, b.flat(y), pixels, channels, activation)
    return y
