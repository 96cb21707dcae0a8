"""Windows: threads can be pinned; its object files are not of the ELF format."""

from __future__ import annotations

import ctypes
import importlib
import platform
from typing import Any

walks_programs = False
pins_threads = True

_BITS = 64
_PLACE = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


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


def processor_name() -> str:
    """As the control panel names it."""
    return _told("ProcessorNameString") or platform.processor() or platform.machine()


def processor_identity() -> str:
    """Name, family, model and stepping."""
    told = [_told(name) for name in ("VendorIdentifier", "Identifier", "ProcessorNameString")]
    return "\n".join((platform.machine(), *told)) if any(told) else ""


def _kernel() -> Any:
    return ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]  # of Windows


def _told(name: str) -> str:
    """What the registry says of the first processor."""
    winreg: Any = importlib.import_module("winreg")
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _PLACE) as key:
            return str(winreg.QueryValueEx(key, name)[0]).strip()
    except OSError:
        return ""
