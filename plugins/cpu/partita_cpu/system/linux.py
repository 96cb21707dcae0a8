"""Linux: its calls by number, which differ between processors."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from typing import NamedTuple


class Calls(NamedTuple):
    """Numbers of calls to the system, for the C function ``syscall``."""

    futex: int
    give_way: int
    set_affinity: int
    get_affinity: int
    usage: int


_GENERIC = Calls(98, 124, 122, 123, 165)
_NUMBERS = {
    "x86_64": Calls(202, 24, 203, 204, 98),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
}


def calls_of(machine: str) -> Calls | None:
    """The numbers for a kind of machine, as ``platform.machine()`` names it; if they are known."""
    return _NUMBERS.get(machine)


_known = calls_of(platform.machine()) if sys.maxsize > 2**32 else None

calls = _known or _GENERIC
"""Those of this machine. Nothing calls by them where :data:`walks_programs` is false."""

walks_programs = _known is not None and sys.platform.startswith("linux")
pins_threads = hasattr(os, "sched_setaffinity")

_SMALLEST_SET = 128
_LARGEST_SET = 1 << 16


@functools.cache
def set_bytes() -> int:
    """How large a set of processors must be for the system to fill it in.

    1,024 processors fit into 128 bytes; for a system that is built for more it is too small.
    """
    syscall = ctypes.CDLL(None).syscall
    syscall.restype = ctypes.c_long
    size = _SMALLEST_SET
    while size < _LARGEST_SET:
        room = ctypes.create_string_buffer(size)
        if syscall(ctypes.c_long(calls.get_affinity), 0, ctypes.c_size_t(size), room) > 0:
            return size
        size *= 2
    return _SMALLEST_SET


def pin(processor: int) -> None:
    """Keeps the calling thread on a processor.

    Raises:
        OSError: This process may not run there.
    """
    os.sched_setaffinity(0, {processor})
