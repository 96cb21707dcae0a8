"""Application memory lent to a device: arrays in a larger buffer, whose rest must not change."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_conformance.inputs.models import Array

_EDGE, _MARK = 32, 0x5A


class Place:
    """An array in the middle of bytes that nobody may write, at any address that fits its type.

    Args:
        array: Its elements.
        offset: How many elements it begins behind a multiple of 64 bytes.
    """

    def __init__(self, array: Array, offset: int = 0) -> None:
        if array.dtype.hasobject:
            self.block, self.array = np.zeros(0, np.uint8), array.copy()
        else:
            self.block = np.full(array.nbytes + 2 * _EDGE + 128, _MARK, np.uint8)
            start = -self.block.ctypes.data % 64 + _EDGE + offset * array.itemsize % 64
            self.array = self.block[start : start + array.nbytes].view(array.dtype)
            self.array = self.array.reshape(array.shape)
            self.array[...] = array
        self.hold()

    def hold(self) -> None:
        """What it holds now is what it is to hold from now on."""
        self._held = self._contents()

    def holds(self) -> bool:
        """Whether nobody has written to it or beside it."""
        return bool(self._contents() == self._held)

    def edges_hold(self) -> bool:
        """Whether nobody has written beside it."""
        if self.array.dtype.hasobject:
            return True
        start = self.array.ctypes.data - self.block.ctypes.data
        beside = self.block[:start], self.block[start + self.array.nbytes :]
        return all(bool((part == _MARK).all()) for part in beside)

    def _contents(self) -> Any:
        if self.array.dtype.hasobject:
            return self.array.tolist()
        return self.block.tobytes()


def contents(array: Array) -> Any:
    """All of an array, to be compared later."""
    return array.tolist() if array.dtype.hasobject else array.tobytes()
