"""Memory that starts at a cache line, also in large pages, for what is read in every run.

To find the address of a page takes long where the pages of a virtual machine are pages of a larger
memory themselves, and processors foresee reads within a page alone. The system gives large pages
where it is asked to, of memory that is as long and begins where one may.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_PAGE = 2 << 20
"""Bytes of a large page."""

_SHARED_BYTES = range(6 << 20, (16 << 20) + 1, _PAGE)
"""Of memory that arrays share, any of these. It stays as long as one of them does."""

_LARGEST_SHARED = 4 << 20
"""Arrays from this size on have memory of their own, for which numpy asks for large pages."""

_ALIGNMENT = 64
"""Bytes; a cache line."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _Shared:
    """Memory that the next arrays come from.

    Attributes:
        free: What is left of it.
    """

    lock = InterruptSafeLock()
    free: Bytes = np.empty(0, np.uint8)


def aligned_bytes(count: int) -> Bytes:
    """So many bytes that start at a cache line, as vectors of kernels may; their content is open.

    Raises:
        MemoryError: The host has no room.
    """
    raw = np.empty(count + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count]


def lasting_bytes(count: int) -> Bytes:
    """So many bytes that start at a cache line; what they hold is not said.

    Small ones lie side by side, and give memory back when all of them are gone: they are for what
    is as old as its neighbours, as the weights of a model are.

    Raises:
        MemoryError: The host has no room.
    """
    found = shared_zeros(count)
    if found is None:
        found = _large_pages(count) if hasattr(mmap, "MADV_HUGEPAGE") else aligned_bytes(count)
    return found


def shared_zeros(count: int) -> Bytes | None:
    """The same, all 0; ``None`` for what is large, and where the system knows no large pages.

    Raises:
        MemoryError: The host has no room.
    """
    if count >= _LARGEST_SHARED or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    room = -(-count // _ALIGNMENT) * _ALIGNMENT
    with _Shared.lock:
        if room > _Shared.free.size:
            _Shared.free = _large_pages(_shared_size(room))
        taken, _Shared.free = _Shared.free[:count], _Shared.free[room:]
    return taken


def _shared_size(room: int) -> int:
    """Bytes of new memory of which arrays of so many bytes leave the least share free.

    Tensors of one size follow one another, as a cache's do, and what they leave lies in a large
    page that they have in part.
    """
    return max(_SHARED_BYTES, key=lambda size: size // room * room / size)


def lasting_copy(array: Bytes) -> Bytes:
    """A copy of flat bytes in such memory."""
    copy = lasting_bytes(array.size)
    copy[...] = array
    return copy


def _large_pages(count: int) -> Bytes:
    """So many bytes that begin where a large page may; small pages where there are no others."""
    try:
        memory = mmap.mmap(-1, count + _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{count} bytes: {error}") from error
    try:
        raw = np.frombuffer(memory, np.uint8)
        start = -raw.ctypes.data % _PAGE
        memory.madvise(mmap.MADV_HUGEPAGE, start, (count + _PAGE // 2) // _PAGE * _PAGE)
    except OSError:  # the system was made without them
        return np.frombuffer(memory, np.uint8)[:count]
    return raw[start : start + count]


def _after_fork() -> None:
    """Another thread may have been taking memory while the process was forked."""
    _Shared.lock, _Shared.free = InterruptSafeLock(), np.empty(0, np.uint8)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
