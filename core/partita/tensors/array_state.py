"""Whether an array is still what it was when it was handed in: address, shape, strides, type.

Applications may change an array in place, or have numpy move it (``resize(refcheck=False)``), while
a request holds calls that were made for it. To look is cheap: it is done before every run.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from partita.tensors.tensor import HostTensor

Array = np.ndarray[Any, Any]

_ADDRESS = object.__basicsize__
"""Where numpy keeps the address of an array's elements: right behind Python's own fields."""


class ArrayState:
    """What the array of a tensor was; :meth:`holds` tells whether it is that still.

    Runners are handed the view, whose address, shape and type never change: they may take it for
    what it was as long as it is the same object.

    Args:
        tensor: The tensor; its shape and type are what its array had when it was made.

    Attributes:
        array: That of the tensor.
        view: A tensor of the same elements, which no application knows.
    """

    __slots__ = (
        "_address",
        "_dtype",
        "_shape",
        "_strides",
        "_word",
        "_writeable",
        "array",
        "tensor",
        "view",
    )

    def __init__(self, tensor: HostTensor) -> None:
        self.tensor = tensor
        self.array = array = tensor.numpy()
        self._shape, self._dtype = tensor.shape, tensor.dtype
        self._strides, self._writeable = array.strides, array.flags.writeable
        self._word = _word_of(array)
        self._address = self._word.value
        self.view = HostTensor.of(array.view())

    def holds(self) -> bool:
        """Whether it is the tensor's array yet, as it was then, read-only or not."""
        array = self.array
        return (
            self.tensor.numpy() is array
            and self._word.value == self._address
            and array.shape == self._shape
            and array.dtype is self._dtype
            and array.strides == self._strides
            and array.flags.writeable is self._writeable
        )


class _SlowWord:
    """An array's address, asked of numpy where its fields do not lie as expected."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def value(self) -> int:
        return int(self._array.ctypes.data)


_word_at = ctypes.c_ssize_t.from_address


def _word_of(array: Array) -> ctypes.c_ssize_t | _SlowWord:
    return _word_at(id(array) + _ADDRESS) if _AS_EXPECTED else _SlowWord(array)


def data_address(array: Array) -> int:
    """Where an array's elements start: numpy takes several times as long to tell."""
    if _AS_EXPECTED:
        return _word_at(id(array) + _ADDRESS).value
    return int(array.ctypes.data)


def _as_expected() -> bool:
    tried: list[Array] = [np.zeros(5, np.float32), np.zeros((3, 7))[1:]]
    words = [_word_at(id(array) + _ADDRESS) for array in tried]
    return [word.value for word in words] == [array.ctypes.data for array in tried]


_AS_EXPECTED = _as_expected()
"""Whether an array's address lies where this module reads it."""
