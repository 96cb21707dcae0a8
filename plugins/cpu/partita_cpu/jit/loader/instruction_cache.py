"""Instruction cache flushes, for processors whose instruction cache does not follow writes."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable


def forget_instructions(start: int, size: int) -> None:
    """Lets the processor fetch instructions anew from memory where they were just written.

    x86-64 sees to it by itself. For 64-bit ARM the compiler's library has a function; where that is
    missing, Linux alone does it: it must for each page of a process that becomes executable.
    """
    if platform.machine() in ("aarch64", "arm64") and (clear := _clear_cache()) is not None:
        clear(ctypes.c_void_p(start), ctypes.c_void_p(start + size))


@functools.cache
def _clear_cache() -> Callable[..., object] | None:
    try:
        found: Callable[..., object] = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    except (OSError, AttributeError):
        return None
    return found
