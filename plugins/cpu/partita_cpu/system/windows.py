"""Windows: threads can be pinned; its object files are not of the ELF format."""

from __future__ import annotations

import ctypes
from typing import Any

walks_programs = False
pins_threads = True

_BITS = 64


def pin(processor: int) -> None:
    """Keeps the calling thread on a processor of the process's group.

    Raises:
        OSError: This process may not run there.
    """
    kernel = _kernel()
    kernel.GetCurrentThread.restype = ctypes.c_void_p
    kernel.SetThreadAffinityMask.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    kernel.SetThreadAffinityMask.restype = ctypes.c_size_t
    if processor >= _BITS or not kernel.SetThreadAffinityMask(
        kernel.GetCurrentThread(), 1 << processor
    ):
        raise OSError(f"Windows does not let this thread stay on processor {processor}")


def _kernel() -> Any:
    return ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]  # of Windows
