"""Linux: its calls by number, which differ between processors, and what it tells of processes."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")


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


def processor_seconds(group: int, root: Path = _ROOT) -> float:
    """Processor time that the processes of a group have used so far.

    It grows while one of them computes, however slowly, and stays as it is while all of them wait.
    It falls when one ends that nobody has waited for.

    Args:
        group: The number of the group.
        root: Where the system's files are.
    """
    total = 0
    for file in root.glob("proc/[0-9]*/stat"):
        try:
            fields = file.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[_GROUP]) == group:
            total += sum(map(int, fields[_TIMES]))
    return total / os.sysconf("SC_CLK_TCK")


_GROUP, _TIMES = 2, slice(11, 15)
"""Behind a process's name: its group, and its own times and those of children waited for."""
