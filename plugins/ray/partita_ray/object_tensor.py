"""Tensors in Ray's object store: what crosses between nodes is a reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.errors import InferError
from partita.tensors.tensor import Tensor
from partita_ray.remote_call import fetch

MEMORY = "ray:"
"""What ids of nodes' memories begin with; the node's number follows."""


class ObjectTensor(Tensor):
    """A tensor in the object store of a node, which nobody writes to any more.

    A call on the same node reads it where it lies. A call on another one, and this process, have
    Ray bring it there, once for each node.

    Args:
        held: The reference to the array, whose object lives as long as the tensor; or the array,
            if it is small and came with the answer of a call.
        shape: Dimensions.
        dtype: Element type.
        device: The device whose node has it, e.g. ``"RAY.1"``.
        memory: Id of the node's memory.
    """

    __slots__ = ("device", "dtype", "held", "memory", "shape")

    def __init__(
        self, held: Any, shape: tuple[int, ...], dtype: np.dtype[Any], device: str, memory: str
    ) -> None:
        self.held = held
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.memory = memory

    def view(self) -> np.ndarray[Any, Any]:
        """The elements where this node's object store has them; not to be written to.

        Raises:
            InferError: The node that had them is gone.
        """
        held: np.ndarray[Any, Any] = self.held
        if not isinstance(held, np.ndarray):
            held = fetch(f"{self.device}: fetch a tensor", held, InferError)
        return held

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the elements."""
        return np.array(self.view(), order="C")

    def copy_to(self, target: Tensor) -> None:
        """Writes the elements to a host tensor of the same shape and type."""
        np.copyto(target.stored(), self.view(), casting="no")
