"""Tensors that end, or begin, at a page that nobody may touch: who reads beyond them dies."""

from __future__ import annotations

import ctypes
import math
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
_ALIGNMENT = 64
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(array, at_end=True):
    """A copy of an array beside an unreadable page; object arrays are returned as they are.

    Args:
        array: Of numbers.
        at_end: Whether that page is behind it; else it is before.
    """
    if array.dtype.hasobject or array.nbytes == 0:
        return array
    copy = guarded_empty(array.shape, array.dtype, at_end)
    copy[...] = array
    return copy


def guarded_empty(shape, dtype, at_end=True, alignment=1):
    """An array of zeros beside an unreadable page.

    Args:
        shape: Of the array.
        dtype: Of its elements.
        at_end: Whether that page is behind it; else it is before.
        alignment: Of its address; up to so many bytes lie between it and the page behind.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    pages = -(-nbytes // PAGE)
    area = mmap.mmap(-1, (pages + 2) * PAGE)
    whole = np.frombuffer(area, np.uint8)
    for page in (0, pages + 1):
        place = ctypes.c_void_p(whole.ctypes.data + page * PAGE)
        if _libc.mprotect(place, ctypes.c_size_t(PAGE), _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    start = PAGE if not at_end else (pages + 1) * PAGE - nbytes
    start -= start % alignment
    return whole[start : start + nbytes].view(dtype).reshape(shape)


def guard_scratch():
    """Puts device CPU's scratch memory and outputs at guard pages as well."""
    from partita_cpu.runtime import bound_program

    def aligned_empty(shape, dtype):
        if dtype.hasobject or math.prod(shape) == 0:
            return np.empty(shape, dtype)
        return guarded_empty(shape, dtype, alignment=_ALIGNMENT)

    bound_program.aligned_empty = aligned_empty
