"""Host memory for tensors that live longer than a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.tensors.tensor import HostTensor

_ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector register."""


def host_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostTensor:
    """A host tensor of zeros that starts at a cache line.

    The system gives pages of it when they are first written: a cache for thousands of tokens takes
    the memory of those that came.

    Raises:
        MemoryError: The host has no room.
    """
    if dtype.hasobject:
        return HostTensor(np.zeros(shape, dtype))
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        raw = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    except ValueError as error:  # numpy says so of sizes beyond any address
        raise MemoryError(f"{nbytes} bytes: {error}") from error
    start = -raw.ctypes.data % _ALIGNMENT
    return HostTensor(raw[start : start + nbytes].view(dtype).reshape(shape))
