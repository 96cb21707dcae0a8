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
class Window:
    """Where a tensor lies in a larger one, along the innermost axis in memory.

    Attributes:
        begin: The first element there that is the tensor's.
        size: How many of them the tensor has.
        whole: How many the larger tensor has.
    """

    begin: int
    size: int
    whole: int


@dataclass(frozen=True)
class Layout:
    """An order of axes and an element type. Two devices that name the same one mean the same.

    Attributes:
        axes: The tensor's axes in the order in which they lie in memory, outermost first:
            ``(0, 2, 3, 1)`` is channels last.
        dtype: Element type in memory; may be narrower than the tensor's.
        window: The part of a larger tensor that this one is, or ``None`` if it is one by itself.
            Devices name layouts without; see :meth:`CompiledModel.windows`.
    """

    axes: tuple[int, ...]
    dtype: np.dtype[Any]
    window: Window | None = None

    @property
    def name(self) -> str:
        """What reports call it: ``"NHWC float32"``; axes without letters by number."""
        letters = "NCHW" if len(self.axes) == 4 else "".join(map(str, range(len(self.axes))))
        part = self.window
        where = "" if part is None else f" at {part.begin} of {part.whole}"
        return f"{''.join(letters[axis] for axis in self.axes)} {self.dtype}{where}"

    def shape_in_memory(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The dimensions in the order of memory of a tensor of this shape, or of the larger one."""
        dims = tuple(shape[axis] for axis in self.axes)
        return dims if self.window is None else (*dims[:-1], self.window.whole)

    def shape_of(self, stored: Array) -> tuple[int, ...]:
        """The dimensions of the tensor that lies in an array."""
        shape = [0] * stored.ndim
        for axis, size in zip(self.axes, stored.shape, strict=True):
            shape[axis] = size
        if self.window is not None:
            shape[self.axes[-1]] = self.window.size
        return tuple(shape)

    def own(self, stored: Array) -> Array:
        """The elements in an array that are the tensor's: a view."""
        part = self.window
        return stored if part is None else stored[..., part.begin : part.begin + part.size]

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes that a tensor of this shape takes, or the larger one that it is a part of."""
        return math.prod(self.shape_in_memory(shape)) * self.dtype.itemsize

    def plain(self, stored: Array, dtype: np.dtype[Any]) -> Array:
        """The elements in C order and of a port's type: a copy."""
        back = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return np.array(self.own(stored).transpose(back), dtype, order="C")

    def stored(self, plain: Array) -> Array:
        """The elements of a plain array in this layout: a copy, with zeros around a window."""
        if self.window is None:
            return np.array(plain.transpose(self.axes), self.dtype, order="C")
        whole = np.zeros(self.shape_in_memory(plain.shape), self.dtype)
        self.own(whole)[...] = plain.transpose(self.axes)
        return whole


class LaidOutTensor(Tensor):
    """A host tensor in a layout; whoever has not agreed to the layout gets copies in C order.

    Args:
        array: The elements as they lie in memory: C order over ``layout.shape_in_memory(shape)``;
            of a tensor that is a window, all of the larger one.
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
