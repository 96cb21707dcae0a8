"""The arguments of some kernels as bytes in one memory, where drivers read them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Argument = Any
"""A buffer, ``None`` in its place, or the bytes of a number or vector."""

_ALIGNED = 16
"""Bytes of which the place of a value is a multiple."""


class ArgumentTable:
    """Arguments by kernel and position.

    Args:
        arguments: By kernel, a value for each position.
        handle: What a driver knows a buffer by, 64 bits.

    Attributes:
        starts: By kernel, how many arguments those before it have; at the end, how many all have.
        sizes: By argument its bytes.
        addresses: By argument where it is.
    """

    def __init__(
        self, arguments: Sequence[Sequence[Argument]], handle: Callable[[Any], int]
    ) -> None:
        self._handle = handle
        self._values = [list(values) for values in arguments]
        self.starts = list(itertools.accumulate(map(len, self._values), initial=0))
        written = [self._bytes_of(value) for values in self._values for value in values]
        self.sizes = np.array([len(text) for text in written], np.uint64)
        padded = [text.ljust(-(-len(text) // _ALIGNED) * _ALIGNED, b"\0") for text in written]
        self._places = list(itertools.accumulate(map(len, padded), initial=0))
        self._memory = np.array(bytearray().join(padded), np.uint8)
        self.addresses = self._memory.ctypes.data + np.array(self._places[:-1], np.uint64)

    def value(self, number: int, position: int) -> Argument:
        """What a kernel has at a position."""
        return self._values[number][position]

    def change(self, number: int, position: int, value: Argument) -> None:
        """Takes another buffer in the place of one."""
        self._values[number][position] = value
        start, text = self._places[self.starts[number] + position], self._bytes_of(value)
        self._memory[start : start + len(text)] = np.frombuffer(text, np.uint8)

    def _bytes_of(self, value: Argument) -> bytes:
        if isinstance(value, bytes):
            return value
        return (0 if value is None else self._handle(value)).to_bytes(8, "little")
