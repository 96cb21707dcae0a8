"""Layouts: how tensors that cross between submodels lie in memory where it is not as ports say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MemoryLayout:
    """An order of axes and an element type. Two devices that name the same one mean the same.

    Attributes:
        axes: The tensor's axes in the order in which they lie in memory, outermost first:
            ``(0, 2, 3, 1)`` is channels last.
        dtype: Element type in memory; may be narrower than the tensor's.
    """

    axes: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """What reports call it: ``"NHWC float32"``; axes without letters by number."""
        letters = "NCHW" if len(self.axes) == 4 else "".join(map(str, range(len(self.axes))))
        return f"{''.join(letters[axis] for axis in self.axes)} {self.dtype}"

    def shape_in_memory(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The dimensions in the order of memory of a tensor of this shape."""
        return tuple(shape[axis] for axis in self.axes)

    def shape_of(self, stored: Array) -> tuple[int, ...]:
        """The dimensions of the tensor that lies in an array."""
        shape = [0] * stored.ndim
        for axis, size in zip(self.axes, stored.shape, strict=True):
            shape[axis] = size
        return tuple(shape)

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes that a tensor of this shape takes."""
        return math.prod(shape) * self.dtype.itemsize

    def plain(self, stored: Array, dtype: np.dtype[Any]) -> Array:
        """The elements in C order and of a port's type: a copy."""
        back = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return np.array(stored.transpose(back), dtype, order="C")

    def stored(self, plain: Array) -> Array:
        """The elements of a plain array in this layout: a copy."""
        return np.array(plain.transpose(self.axes), self.dtype, order="C")
