"""Tables for Resize: which input positions, with which weights, make each output position.

Follows the operator's specification; coordinates are computed in float32, as ONNX Runtime does, so
that ties fall on the same side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from partita.lowering import Array

OUTSIDE = -1
"""The position of a place outside the image that takes the extrapolation value."""

TRANSFORMATIONS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


@dataclass(frozen=True)
class Sampling:
    """How one dimension is resampled.

    Attributes:
        size: Positions in.
        out: Positions out.
        scale: Their ratio, as the model gives it.
        transformation: How output positions map to input positions.
        start: Start of the region (tf_crop_and_resize), as a part of the dimension.
        end: End of the region.
    """

    size: int
    out: int
    scale: float
    transformation: str
    start: float = 0.0
    end: float = 1.0

    @property
    def length(self) -> float:
        """Positions out before they were rounded to a whole number: ONNX aligns corners by it."""
        exact = self.scale * self.size
        return self.out if math.isclose(exact, self.out, rel_tol=1e-6) else exact

    def coordinates(self) -> Array:
        """The input coordinate of each output position, float32."""
        one = np.float32
        x = np.arange(self.out, dtype=np.float32)
        scale = one(self.scale)
        half = (x + one(0.5)) / scale - one(0.5)
        match self.transformation:
            case "half_pixel":
                return half
            case "half_pixel_symmetric":
                adjustment = one(self.out) / (scale * one(self.size))
                centre = one(self.size) / one(2)
                return centre * (one(1) - adjustment) + half
            case "pytorch_half_pixel":
                return half if self.out > 1 else np.zeros_like(x)
            case "align_corners":
                if self.out == 1:
                    return np.zeros_like(x)
                return x * one(self.size - 1) / one(self.length - 1)
            case "tf_half_pixel_for_nn":
                return (x + one(0.5)) / scale
            case "tf_crop_and_resize":
                first, last = one(self.start), one(self.end)
                if self.out == 1:
                    return np.full(1, one(0.5) * (first + last) * one(self.size - 1), np.float32)
                step = (last - first) * one(self.size - 1) / one(self.out - 1)
                return first * one(self.size - 1) + x * step
        return x / scale  # asymmetric

    def nearest(self, mode: str) -> Array:
        """One input position per output position (int32)."""
        x = self.coordinates()
        match mode:
            case "floor":
                chosen = np.floor(x)
            case "ceil":
                chosen = np.ceil(x)
            case "simple":
                chosen = np.ceil(x) if self.scale < 1 else np.trunc(x)
            case "round_prefer_ceil":
                chosen = np.floor(x + np.float32(0.5))
            case _:
                chosen = np.ceil(x - np.float32(0.5))
        return self._marked(np.clip(chosen, 0, self.size - 1).astype(np.int32)[:, None], x)

    def linear(self) -> tuple[Array, Array]:
        """Two positions and weights per output position."""
        x = self.coordinates()
        inside = np.clip(x, 0, self.size - 1)
        left = np.floor(inside).astype(np.int32)
        right = np.minimum(left + 1, self.size - 1)
        weight = inside - left
        places = self._marked(np.stack([left, right], axis=1), x)
        return places, np.stack([1 - weight, weight], axis=1).astype(np.float32)

    def cubic(self, a: float, exclude_outside: bool) -> tuple[Array, Array]:
        """Four positions and weights per output position; Keys' kernel with parameter ``a``."""
        x = self.coordinates()
        base = np.floor(x)
        t = (x - base).astype(np.float64)
        weights = np.stack(
            [
                ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
                ((a + 2) * t - (a + 3)) * t * t + 1,
                ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
                ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
            ],
            axis=1,
        )
        places = base.astype(np.int64)[:, None] + np.arange(-1, 3)
        if exclude_outside:
            weights = np.where((places < 0) | (places >= self.size), 0.0, weights)
            weights /= weights.sum(axis=1, keepdims=True)
        clipped = np.clip(places, 0, self.size - 1).astype(np.int32)
        return self._marked(clipped, x), weights.astype(np.float32)

    def _marked(self, places: Array, coordinates: Array) -> Array:
        """The positions, with those outside the image marked where the transformation asks."""
        if self.transformation == "tf_crop_and_resize":
            outside = (coordinates < 0) | (coordinates > self.size - 1)
            places[outside] = OUTSIDE
        return np.ascontiguousarray(places)
