"""Host memory for tensors that live longer than a run."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from partita.system.large_pages import shared_zeros
from partita.tensors.tensor import HostTensor

_ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector register."""


_PAGED_BYTES = 1 << 17
"""Memory from this size on comes from the system by itself: what the process has freed before is
memory already, which would be filled with zeros as a whole."""

_LAZY_BYTES = 2 << 20
"""From this size on it comes in the system's small pages, as it is written; less shares large ones,
in which it is read faster."""


def host_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostTensor:
    """A host tensor of zeros that starts at a cache line.

    The system gives pages of it when they are first written: a cache for many thousands of tokens
    takes the memory of those that came.

    Raises:
        MemoryError: The host has no room.
    """
    if dtype.hasobject:
        return HostTensor(np.zeros(shape, dtype))
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        raw = _zeros(nbytes)
    except (OSError, OverflowError, ValueError) as error:  # of sizes beyond any address
        raise MemoryError(f"{nbytes} bytes: {error}") from error
    start = -raw.ctypes.data % _ALIGNMENT
    return HostTensor(raw[start : start + nbytes].view(dtype).reshape(shape))


def _zeros(nbytes: int) -> np.ndarray[Any, Any]:
    """So many bytes of zeros, somewhere in as much memory or a little more."""
    if nbytes < _PAGED_BYTES:
        return np.zeros(nbytes + _ALIGNMENT, np.uint8)
    shared = shared_zeros(nbytes) if nbytes < _LAZY_BYTES else None
    return _pages(nbytes) if shared is None else shared


def _pages(nbytes: int) -> np.ndarray[Any, Any]:
    """So many bytes of zeros, which take no memory before they are written.

    Where the system has private pages: those of others take memory when they are read, too.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, nbytes, flags), np.uint8)
