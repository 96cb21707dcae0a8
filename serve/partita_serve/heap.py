"""Keeps freed memory in the server's process, for the next requests."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``, as ``malloc.h`` numbers them."""

_FROM_HEAP_BYTES = 32 << 20
"""Blocks below this come from the heap: the most that glibc takes (HEAP_MAX_SIZE / 2)."""

_KEPT_BYTES = 256 << 20
"""Free bytes at the top of the heap that are kept."""


def keep_freed_memory() -> None:
    """Lets this process keep the memory that it frees, where the C library is glibc.

    A server makes and frees the same few megabytes with each request: messages, tensors, answers.
    By default these go back to the system each time, and each page of the next request is a fault:
    ``benchmarks/serve_latency.py`` shows what that costs.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
