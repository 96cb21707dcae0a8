"""Quick garbage collections, and exact counts of the objects that remain."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

_within = 0


@contextlib.contextmanager
def of_new_objects(first: bool = True) -> Iterator[None]:
    """Lets collections look at what is made inside alone: the rest of a large process stays.

    One inside another lasts until the outer one ends, which collects what is left of both.

    Args:
        first: Whether to collect before, too.
    """
    global _within
    if first:
        gc.collect()
    gc.freeze()
    _within += 1
    try:
        yield
    finally:
        _within -= 1
        if not _within:
            gc.collect()
            gc.unfreeze()


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of the GNU C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks")] + [
        (name, ctypes.c_size_t)
        for name in ("hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def python_blocks() -> int:
    """Pieces of memory that Python's objects have now."""
    return sys.getallocatedblocks()


def native_bytes() -> int:
    """Bytes that native code has from the C library now; 0 where the C library does not say."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)
