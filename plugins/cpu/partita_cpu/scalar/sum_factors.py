"""Factors of two levels whose weighted sum rounds as a quotient of dequantized numbers does."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np


class SumFactors(NamedTuple):
    """What makes levels of two inputs a sum in steps of the result, from its level of 0.

    Attributes:
        x: By what the one input's levels are multiplied.
        w: By what those of the other are.
        term: What is added.
    """

    x: np.float32
    w: np.float32
    term: np.float32


_NEAR_HALF = np.float32(2**-8)
"""So near to the middle of two levels factors may round differently, and no farther."""
_LARGEST_SUM = 2.0**12
"""In steps of the result: beyond, rounding errors may be as large as `_NEAR_HALF`."""
_FACTOR_RANGE = 2.0**-9, 2.0**9
"""Of factors and terms whose products and sums float64 holds exactly."""
_FARTHEST = 2
"""Steps of float32 by which factors differ from the nearest ones, at most."""
_STEPS = sorted(
    itertools.product(range(-_FARTHEST, _FARTHEST + 1), repeat=3),
    key=lambda steps: sum(map(abs, steps)),
)
"""In steps of float32: how far both factors and the term are from the nearest ones."""


@functools.lru_cache(maxsize=256)
def sum_factors(
    scales: tuple[float, float, float], zeros: tuple[int, int, int], low: int
) -> SumFactors | None:
    """Factors that give what dequantizing, adding and quantizing give, for all pairs of levels.

    These two multiplications round otherwise than a division of a sum of products. So all pairs of
    which a sum is near the middle of two levels are tried; of ordinary scales one in seven needs
    factors that are not the nearest.

    Args:
        scales: Of x, w and y, as float32 has them.
        zeros: Their zero points.
        low: The least level.

    Returns:
        Factors; ``None`` if none were found.
    """
    nearest = _nearest(scales, zeros)
    if nearest is None:
        return None
    every = np.arange(low, low + 256)
    first, second = (
        (every - zero).astype(np.float32) * np.float32(scale)
        for zero, scale in zip(zeros[:2], scales[:2], strict=True)
    )
    sums = (first[:, None] + second) / np.float32(scales[2])
    x, w = np.nonzero(np.abs(sums - np.floor(sums) - np.float32(0.5)) < _NEAR_HALF)
    bounds = low - zeros[2], low + 255 - zeros[2]
    due = np.clip(np.rint(sums[x, w]), *bounds)
    left, right = every[x].astype(np.float64), every[w].astype(np.float64)
    for steps in _STEPS:
        if steps[2] and not nearest.term:
            continue  # float64 does not hold sums with numbers next to 0
        factors = SumFactors(
            *(c + np.float32(n) * np.spacing(abs(c)) for c, n in zip(nearest, steps, strict=True))
        )
        total = (right * np.float64(factors.w) + np.float64(factors.term)).astype(np.float32)
        total = (left * np.float64(factors.x) + total).astype(np.float32)
        if np.array_equal(np.clip(np.rint(total), *bounds), due):
            return factors
    return None


def _nearest(scales: tuple[float, float, float], zeros: tuple[int, int, int]) -> SumFactors | None:
    """The factors next to the real ones; ``None`` if products and sums are not exact in float64."""
    x_scale, w_scale, y_scale = map(np.float64, scales)
    with np.errstate(all="ignore"):
        x, w = x_scale / y_scale, w_scale / y_scale
        found = SumFactors(*map(np.float32, (x, w, -(zeros[0] * x + zeros[1] * w))))
    sizes = np.abs(np.array(found))
    least, largest = _FACTOR_RANGE
    if not ((sizes[:2] >= least) & (sizes[:2] < largest)).all():
        return None
    if 0 < sizes[2] < least or not 256 * (sizes[0] + sizes[1]) + sizes[2] < _LARGEST_SUM:
        return None
    return found
