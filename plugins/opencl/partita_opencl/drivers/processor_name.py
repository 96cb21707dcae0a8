"""A processor's name where PoCL has none: its compiler refuses to make code for any kernel then.

PoCL takes the name from LLVM, which says ``generic`` of a processor younger than itself (LLVM 14 of
AMD's Zen 5, say), and clang refuses that name on x86. PoCL has no variable for it: the name stands
in the memory of its device, and one as long takes its place there. Which built-in functions go with
it is found by the driver's trial, in a process of its own, as always (:mod:`.driver_view`).
"""

from __future__ import annotations

import contextlib
import os
import struct
from platform import machine
from typing import Any

POCL = "Portable Computing Language"
"""The name of PoCL's platform."""

UNKNOWN, KNOWN = b"generic\0", b"haswell\0"
"""What LLVM says, and the first with AVX2: a processor without fails its trial as it did before."""

_MEMORY = "/proc/self/mem"
"""Read and written as a file: an address that is none is an error, not a signal."""

_DEVICE_BYTES = 4096
"""Where the pointer to the name is looked for, from the start of a device's description."""


def name_processors(platform: Any) -> None:
    """Gives PoCL's devices a name that its compiler knows, where they have none.

    Args:
        platform: A ``pyopencl.Platform``, whose devices have compiled nothing yet.
    """
    import pyopencl as cl

    if platform.name != POCL or machine() != "x86_64":
        return
    with contextlib.suppress(cl.Error, OSError):  # a driver that cannot be helped fails its trial
        for handle in platform.get_devices():
            _name(handle.int_ptr)


def _name(device: int) -> None:
    memory = os.open(_MEMORY, os.O_RDWR)
    try:
        content = os.pread(memory, _DEVICE_BYTES, device)
        for (address,) in struct.iter_unpack("@N", content[: len(content) // 8 * 8]):
            if _at(memory, address) == UNKNOWN:
                os.pwrite(memory, KNOWN, address)
    finally:
        os.close(memory)


def _at(memory: int, address: int) -> bytes:
    try:
        return os.pread(memory, len(UNKNOWN), address)
    except (OSError, OverflowError):
        return b""
