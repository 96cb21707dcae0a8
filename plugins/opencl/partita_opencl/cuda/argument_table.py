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
        buffers: Each buffer among them as it was made, once.
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
        every = list(itertools.chain.from_iterable(self._values))
        named = {id(value): value for value in every if type(value) is not bytes}
        self.buffers = [value for value in named.values() if value is not None]
        words = {key: self._bytes_of(value) for key, value in named.items()}
        written = [value if type(value) is bytes else words[id(value)] for value in every]
        sizes = list(map(len, written))
        self.sizes = np.array(sizes, np.uint64)
        self._stride = -(-max(sizes, default=1) // _ALIGNED) * _ALIGNED
        # numpy fills the rest of each place with zeros: a large part of the time, done by Python.
        self._memory = np.array(written, f"S{self._stride}").view(np.uint8)
        places = np.arange(len(written), dtype=np.uint64) * np.uint64(self._stride)
        self.addresses = self._memory.ctypes.data + places

    def value(self, number: int, position: int) -> Argument:
        """What a kernel has at a position."""
        return self._values[number][position]

    def change(self, number: int, position: int, value: Argument) -> None:
        """Takes another buffer in the place of one."""
        self._values[number][position] = value
        start, text = self._stride * (self.starts[number] + position), self._bytes_of(value)
        self._memory[start : start + len(text)] = np.frombuffer(text, np.uint8)

    def _bytes_of(self, value: Argument) -> bytes:
        if isinstance(value, bytes):
            return value
        return (0 if value is None else self._handle(value)).to_bytes(8, "little")
