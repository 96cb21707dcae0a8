"""How Resize weighs the neighbours of a coordinate: linear, cubic, or by a stretched filter.

The taps of a coordinate lie side by side in the input, so that a table names the first one only.
Those of the border may lie outside; what reads them takes the outermost element instead.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from partita.lowering.geometry.resampling import Axis, blocks
from partita.lowering.program import Array


class Interpolation(NamedTuple):
    """What the attributes of a Resize say about weights.

    Attributes:
        a: Parameter of Keys' cubic filter; ``None`` for the linear one.
        antialias: Whether the filter is stretched where it shrinks the input.
        exclude_outside: Whether taps outside of the input get no weight instead of repeating the
            border. Linear interpolation without antialiasing has none.
    """

    a: float | None
    antialias: bool = False
    exclude_outside: bool = False

    @property
    def _radius(self) -> int:
        return 1 if self.a is None else 2

    def taps(self, axis: Axis) -> int:
        """Neighbours of each output coordinate."""
        if self.antialias:
            return math.ceil(2 * self._reach(axis)) + 1
        return 2 * self._radius

    def weigh(self, axis: Axis, first: Array, weights: Array, start: int = 0) -> None:
        """Writes a table of output coordinates, as many as it has rows; takes little memory beside.

        Args:
            axis: Sizes and scale of the axis.
            first: Takes the place of each coordinate's first tap; int64.
            weights: Takes the weights of its taps, a row for each, of the type to compute in.
            start: The first output coordinate.
        """
        kind = weights.dtype.type
        for rows in blocks(slice(0, len(first)), weights.shape[1]):
            part = slice(start + rows.start, start + rows.stop)
            if self.a is None and not self.antialias:
                first[rows], weights[rows] = _linear(axis, axis.coordinates(part, kind))
            else:
                x = axis.coordinates(part).astype(np.float64)
                first[rows] = self._first(axis, x)
                self._write(axis, x, first[rows], weights[rows])

    def _first(self, axis: Axis, x: Array) -> Array:
        """Of a filter's taps at some places."""
        begin = x + 1 - self._reach(axis) if self.antialias else x - 1
        return np.asarray(np.floor(begin).astype(np.int64))

    def _write(self, axis: Axis, x: Array, first: Array, weights: Array) -> None:
        """Weights of a filter at some places, whose sum is 1."""
        total = np.zeros(len(x))
        for columns in blocks(slice(0, weights.shape[1])):
            index = first[:, None] + np.arange(columns.start, columns.stop)
            found = self._filtered(axis, x[:, None], index)
            if self.exclude_outside:
                found[(index < 0) | (index >= axis.size)] = 0
            weights[:, columns] = found
            total += found.sum(axis=1)
        weights /= np.where(total == 0, 1, total)[:, None]

    def _filtered(self, axis: Axis, x: Array, index: Array) -> Array:
        distance = (index - x) / (_stretch(axis) if self.antialias else 1.0)
        weights = _tent(distance) if self.a is None else _keys(distance, self.a)
        if not self.antialias:
            return weights
        # The filter covers these elements only, although its tails may be longer than that.
        weights[index >= np.floor(x + 1 + self._reach(axis)).astype(np.int64)] = 0
        return weights

    def _reach(self, axis: Axis) -> float:
        return self._radius * _stretch(axis)


def table(interpolation: Interpolation, kind: Any, axis: Axis) -> tuple[Array, Array]:
    """First taps and weights of an axis, without outer taps that weigh nothing anywhere.

    Args:
        interpolation: How neighbours are weighed.
        kind: Type of the weights.
        axis: Sizes and scale of the axis.
    """
    first = np.empty(axis.out, np.int64)
    weights = np.empty((axis.out, interpolation.taps(axis)), kind)
    interpolation.weigh(axis, first, weights)
    used = np.flatnonzero(np.any(weights != 0, axis=0))
    if not used.size:
        return first, weights[:, :1]  # far from the input nothing weighs, and the sums are 0
    return first + used[0], weights[:, used[0] : used[-1] + 1]


def _stretch(axis: Axis) -> float:
    return max(1.0, 1.0 / axis.scale)


def _linear(axis: Axis, places: Array) -> tuple[Array, Array]:
    """Both neighbours, and weights of the type of the places."""
    x = np.clip(places, 0, axis.size - 1)
    left = np.minimum(np.floor(x).astype(np.int64), axis.size - 1)
    share = x - left.astype(x.dtype)
    return left, np.stack([1 - share, share], axis=1)


def _tent(distance: Array) -> Array:
    """Linear interpolation as a filter."""
    return np.asarray(np.maximum(0, 1 - np.abs(distance)))


def _keys(distance: Array, a: float) -> Array:
    """Keys' piecewise cubic convolution kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
