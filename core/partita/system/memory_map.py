"""Files as memory: read when touched, and given back to the system when they have served."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

_mappings: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()
"""Files that are mapped, by the address where they start."""


def map_file(path: Path) -> memoryview:
    """The bytes of a file, which the system reads as they are touched.

    They stay what they are when the file is deleted or replaced, not if it is written to in place.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _mappings[np.frombuffer(mapping, np.uint8, 1).ctypes.data] = mapping
    return memoryview(mapping)


def spilled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of an array in a temporary file that has no name: one that can be given back.

    Where there is no room for such a file, or no system that reserves it, it is the array itself.
    """
    if not array.nbytes or array.dtype.hasobject or not hasattr(os, "posix_fallocate"):
        return array
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, array.nbytes)  # a full disk is told here
            mapping = mmap.mmap(file.fileno(), array.nbytes)
    except OSError:
        return array
    copy = np.frombuffer(mapping, array.dtype).reshape(array.shape)
    copy[...] = array
    _mappings[copy.ctypes.data] = mapping
    copy.flags.writeable = False
    return copy


def give_back(array: np.ndarray[Any, Any]) -> None:
    """Frees the memory of an array that lies in a file; touched again, it is read again.

    Does nothing to other arrays.
    """
    if not _mappings or array.nbytes < mmap.PAGESIZE or not array.flags.c_contiguous:
        return
    address = array.ctypes.data
    for base, mapping in list(_mappings.items()):
        start = address - base
        if 0 <= start < len(mapping) and hasattr(mapping, "madvise"):
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if last > first:
                mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
