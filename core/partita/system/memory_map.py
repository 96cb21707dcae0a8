"""Files as memory: read when touched, and given back to the system when they have served."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_POOLED_BYTES, _POOL_BYTES = 1 << 20, 1 << 24
"""Smaller arrays than the first are spilled to files of the second that they share."""

_NO_ADDRESS = ctypes.c_void_p(-1).value
"""What ``mmap`` returns where it fails."""


@functools.cache
def _libc() -> ctypes.CDLL:
    """The system's functions for memory of files, with their arguments."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


class _File(mmap.mmap):
    """A file as memory.

    Attributes:
        address: Where it starts.
    """

    address = 0


class _TemporaryFile:
    """A file without a name as memory that can be written to, until nobody has an array of it.

    Python's own mappings keep a descriptor each, and a process has about a thousand.

    Attributes:
        address: Where it starts.

    Raises:
        OSError: There is no room for it.
    """

    def __init__(self, nbytes: int) -> None:
        libc = _libc()
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk is told here
            address = libc.mmap(None, nbytes, rights, mmap.MAP_SHARED, file.fileno(), 0)
        if address in (None, _NO_ADDRESS):
            raise OSError(ctypes.get_errno(), "a temporary file cannot be mapped")
        self.address, self._nbytes = address, nbytes
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }
        # Not at the end of the process: threads may still read.
        weakref.finalize(self, libc.munmap, address, nbytes).atexit = False

    def __len__(self) -> int:
        return self._nbytes

    def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
        """As ``mmap.mmap.madvise``."""
        rest = self._nbytes - start if length is None else length
        _libc().madvise(self.address + start, rest, option)


_mappings: weakref.WeakValueDictionary[int, _File | _TemporaryFile] = weakref.WeakValueDictionary()
"""Files that are mapped, by the address where they start."""


def _mapped() -> list[_File | _TemporaryFile]:
    """Files that are mapped; other threads may map and close some meanwhile."""
    # To go through the dictionary itself is an error where another thread adds to it.
    return [mapping for found in _mappings.valuerefs() if (mapping := found()) is not None]


def map_file(path: Path) -> memoryview:
    """The bytes of a file, which the system reads as they are touched.

    They stay what they are when the file is deleted or replaced, not if it is written to in place.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")
        mapping = _File(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapping.address = np.frombuffer(mapping, np.uint8, 1).ctypes.data
    _mappings[mapping.address] = mapping
    return memoryview(mapping)


def shortened_files() -> list[range]:
    """The addresses of files that have become shorter since they were mapped.

    Whoever reads what lay behind their new end ends the process. Takes a system call for each file.
    """
    return [
        range(mapping.address, mapping.address + len(mapping))
        for mapping in _mapped()
        if isinstance(mapping, _File) and mapping.size() < len(mapping)
    ]


class _Pool:
    """Where the next small array is spilled to: a file for many.

    Attributes:
        mapping: That file's memory, as long as an array lies in it.
        used: How much of it is.
    """

    lock = InterruptSafeLock()
    mapping: weakref.ref[_TemporaryFile] | None = None
    used = 0


def spilled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of an array in a temporary file that has no name: one that can be given back.

    Where there is no room for such a file, or no system that reserves it, it is the array itself.
    """
    if not array.nbytes or array.dtype.hasobject or not hasattr(os, "posix_fallocate"):
        return array
    try:
        mapping, start = _room_for(array.nbytes)
    except OSError:
        return array
    memory = np.asarray(mapping)[start : start + array.nbytes]
    copy: np.ndarray[Any, Any] = memory.view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy


def _room_for(nbytes: int) -> tuple[_TemporaryFile, int]:
    """Memory of a temporary file, and where in it there is so much room.

    Raises:
        OSError: There is none.
    """
    if nbytes >= _POOLED_BYTES:
        return _temporary(nbytes), 0
    with _Pool.lock:
        mapping = None if _Pool.mapping is None else _Pool.mapping()
        if mapping is None or _Pool.used + nbytes > len(mapping):
            mapping = _temporary(_POOL_BYTES)
            _Pool.mapping, _Pool.used = weakref.ref(mapping), 0
        start = _Pool.used
        _Pool.used += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return mapping, start


def _temporary(nbytes: int) -> _TemporaryFile:
    """A temporary file as memory."""
    mapping = _TemporaryFile(nbytes)
    _mappings[mapping.address] = mapping
    return mapping


def give_back(array: np.ndarray[Any, Any]) -> None:
    """Frees the memory of an array that lies in a file; touched again, it is read again.

    Does nothing to other arrays.
    """
    if not _mappings or array.nbytes < mmap.PAGESIZE or not array.flags.forc:
        return
    address = array.ctypes.data
    for mapping in _mapped():
        start = address - mapping.address
        if 0 <= start < len(mapping) and hasattr(mapping, "madvise"):
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if last > first:
                mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def give_back_all() -> None:
    """Frees the memory of all files that are mapped; what is touched again is read again.

    The system maps more than the bytes that are read: when all weights of a model have been packed,
    what lies beside them is still there.
    """
    for mapping in _mapped():
        if hasattr(mapping, "madvise"):
            mapping.madvise(mmap.MADV_DONTNEED)


def _after_fork() -> None:
    """Leaves the file to the parent, which writes the next array to where this process would."""
    _Pool.mapping = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
