"""Host tensors that lie in memory in a layout, and what to ask of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.errors import InferError
from partita.tensors.host import HOST
from partita.tensors.layout import MemoryLayout
from partita.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


class LaidOutTensor(Tensor):
    """A host tensor in a layout; whoever has not agreed to the layout gets copies in C order.

    Args:
        array: The elements as they lie in memory: C order over ``layout.shape_in_memory(shape)``.
        dtype: The tensor's element type, as ports name it.
        layout: How elements of the shape that ports name lie in ``array``.
    """

    __slots__ = ("_array", "device", "dtype", "layout", "memory", "shape")

    layout: MemoryLayout

    def __init__(self, array: Array, dtype: np.dtype[Any], layout: MemoryLayout) -> None:
        self._array = array
        self.shape = layout.shape_of(array)
        self.dtype = dtype
        self.layout = layout
        self.device = HOST
        self.memory = f"{HOST} in {layout.name}"  # nobody takes it for ordinary host memory

    def numpy(self) -> Array:
        """A copy of the elements in C order."""
        return self.layout.plain(self._array, self.dtype)

    def stored(self) -> Array:
        """The array itself, as it lies."""
        return self._array


def stored_as(tensor: Tensor, layout: MemoryLayout | None) -> Array:
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
