"""Layouts: how tensors that cross between submodels lie in memory where it is not as ports say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import InferError
from partita.tensors.tensor import HOST, Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
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


class LaidOutTensor(Tensor):
    """A host tensor in a layout; whoever has not agreed to the layout gets copies in C order.

    Args:
        array: The elements as they lie in memory: C order over ``layout.shape_in_memory(shape)``.
        dtype: The tensor's element type, as ports name it.
        layout: The layout.
    """

    __slots__ = ("_array", "device", "dtype", "layout", "memory", "shape")

    layout: Layout

    def __init__(self, array: Array, dtype: np.dtype[Any], layout: Layout) -> None:
        self._array = array
        self.shape = layout.shape_of(array)
        self.dtype = dtype
        self.layout = layout
        self.device = "CPU"
        self.memory = f"{HOST} in {layout.name}"  # nobody takes it for ordinary host memory

    def numpy(self) -> Array:
        """A copy of the elements in C order."""
        return self.layout.plain(self._array, self.dtype)

    def stored(self) -> Array:
        """The array itself, as it lies."""
        return self._array


def stored_as(tensor: Tensor, layout: Layout | None) -> Array:
    """The elements of a tensor that was agreed to come in a layout, as they lie in memory.

    Raises:
        InferError: It comes in another layout.
    """
    if tensor.layout != layout:
        found, due = (
            "plain" if one is None else f"in layout {one.name}" for one in (tensor.layout, layout)
        )
        raise InferError(f"A tensor came {found}; {due} was agreed when the model was compiled.")
    return tensor.stored()
