"""Constants of which only some elements are kept, as TFLite's schema tells of them.

Elements are reached axis by axis, in an order that the file gives. An axis is dense, and has all
its places, or sparse: of each place of the axes before it a segment of a list tells which places
it has. Axes may be cut into blocks; the place within a block is an axis of its own, behind the
others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MOST_ELEMENTS = 1 << 30
"""Of the tensor that is made: a short file may claim any number."""


@dataclass(frozen=True, slots=True)
class Level:
    """What is known of one axis, in the order in which elements are reached.

    Attributes:
        size: How many places it has, if it is dense.
        segments: Where the places of each entry before it begin in ``indices``, and where the last
            ones end; ``None`` if it is dense.
        indices: The places that there are.
    """

    size: int
    segments: Array | None
    indices: Array


@dataclass(frozen=True, slots=True)
class Sparsity:
    """Where the elements of a constant belong.

    Attributes:
        order: The axes in the order in which they are reached; blocks count on behind the others.
        blocks: Which axis each block is a part of.
        levels: The axes, in that order.
    """

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]

    def fault(self, dims: tuple[int, ...]) -> str:
        """Why a tensor of these sizes cannot lie like this; ``""`` if it can."""
        rank = len(dims)
        if sorted(self.order) != list(range(rank + len(self.blocks))):
            return f"its axes are reached in the order {list(self.order)}"
        if len(self.levels) != len(self.order) or len(set(self.blocks)) != len(self.blocks):
            return f"it tells of {len(self.levels)} axes, blocks of {list(self.blocks)}"
        if math.prod(dims) > MOST_ELEMENTS:
            return f"it has {math.prod(dims)} elements; at most {MOST_ELEMENTS} are allowed"
        sizes = self._sizes(dims)
        if sizes is None:
            return "its blocks do not fill its axes"
        for axis, level in zip(self.order, self.levels, strict=True):
            if level.segments is None and level.size != sizes[axis]:
                return f"axis {axis} has {level.size} places, not {sizes[axis]}"
            if level.indices.size and not (
                level.indices.min() >= 0 and level.indices.max() < sizes[axis]
            ):
                return f"axis {axis} of {sizes[axis]} places has others"
        return ""

    def _sizes(self, dims: tuple[int, ...]) -> list[int] | None:
        """Places of each axis; ``None`` if blocks do not fill them."""
        sizes = list(dims)
        for number, axis in enumerate(self.blocks):
            level = self.levels[self.order.index(len(dims) + number)]
            if not 0 <= axis < len(dims) or level.size < 1 or dims[axis] % level.size:
                return None
            sizes[axis] //= level.size
            sizes.append(level.size)
        return sizes

    def count(self) -> int | None:
        """How many elements are kept; ``None`` if segments do not fit the axes before them.

        It takes no more work than the segments have entries, whatever sizes dense axes claim.
        """
        found = 1
        for level in self.levels:
            if level.segments is None:
                found *= level.size
                continue
            segments = level.segments
            fits = segments.size == found + 1 and segments[0] == 0
            if not fits or (np.diff(segments) < 0).any() or segments[-1] != level.indices.size:
                return None
            found = level.indices.size
        return found

    def places(self, dims: tuple[int, ...]) -> Array:
        """The place of each element among all, counted row by row.

        Args:
            dims: Sizes of the tensor, with which there is no :meth:`fault`, and a :meth:`count`.
        """
        rank, sizes = len(dims), self._sizes(dims)
        if sizes is None or not self.count():
            return np.zeros(0, np.int64)
        strides = [math.prod(dims[axis + 1 :]) for axis in range(rank)]
        for number, axis in enumerate(self.blocks):
            strides.append(strides[axis])
            strides[axis] *= sizes[rank + number]
        places = np.zeros(1, np.int64)
        for axis, level in zip(self.order, self.levels, strict=True):
            if level.segments is None:
                steps = np.arange(level.size, dtype=np.int64) * strides[axis]
                places = (places[:, None] + steps).reshape(-1)
                continue
            counts = np.diff(level.segments)
            places = np.repeat(places, counts) + level.indices * strides[axis]
        return places


def dense(kept: Array, places: Array, dims: tuple[int, ...]) -> Array:
    """All elements; those that are not kept are 0."""
    whole = np.zeros(math.prod(dims), kept.dtype)
    whole[places] = kept
    return whole.reshape(dims)
