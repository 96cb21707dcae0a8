"""Tables of cosines and sines by position, for rotary embedding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.frontends.gguf.hyperparameters import RopeScaling

Array = np.ndarray[Any, Any]

_FAST, _SLOW = 32.0, 1.0
"""Turns within the original context beyond and below which yarn keeps or stretches a frequency."""


def frequencies(size: int, base: float, scaling: RopeScaling, factors: Array | None) -> Array:
    """Radians per position of each pair of elements, as float64.

    Args:
        size: Elements of a head.
        base: Of the geometric series.
        scaling: How a longer context stretches it; yarn is of https://arxiv.org/abs/2309.00071.
        factors: By what the file divides each frequency, if it does.
    """
    plain = base ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    if factors is not None:
        plain = plain / factors.astype(np.float64)
    if scaling.kind == "none":
        return plain
    stretched = plain / scaling.factor
    if scaling.kind == "linear":
        return stretched

    def pair_of(turns: float) -> float:
        """The pair that turns so often within the original context."""
        length = scaling.original_context / (turns * 2 * math.pi)
        return size * math.log(length) / (2 * math.log(base))

    low = max(math.floor(pair_of(_FAST)), 0)
    high = min(math.ceil(pair_of(_SLOW)), size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain * (1 - ramp) + stretched * ramp


def table(frequencies: Array, context: int, scaling: RopeScaling, part: str) -> Array:
    """Cosines (``part`` "cos") or sines ("sin") [context, size / 2] as float32."""
    angles = np.arange(context, dtype=np.float64)[:, None] * frequencies
    magnitude = 1 + 0.1 * math.log(scaling.factor) if scaling.kind == "yarn" else 1.0
    turned = np.cos(angles) if part == "cos" else np.sin(angles)
    return np.asarray(turned * magnitude, np.float32)
