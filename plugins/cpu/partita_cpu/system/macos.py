"""macOS: threads cannot be kept on a processor, and its object files are not of the ELF format."""

from __future__ import annotations

import ctypes
import platform

from partita_cpu.system.portable import pin

__all__ = [
    "pin",
    "pins_threads",
    "processor_identity",
    "processor_name",
    "walks_programs",
]

walks_programs = False
pins_threads = False


def processor_name() -> str:
    """As "About This Mac" names it."""
    return _told("machdep.cpu.brand_string") or platform.machine()


def processor_identity() -> str:
    """Name, and the family by which Apple tells generations apart."""
    names = "machdep.cpu.brand_string", "hw.cputype", "hw.cpusubtype", "hw.cpufamily"
    told = [_told(name) for name in names]
    return "\n".join((platform.machine(), *told)) if any(told) else ""


def _told(name: str) -> str:
    """What sysctl says, numbers as hexadecimal digits; empty if it does not know the name."""
    ask = ctypes.CDLL(None).sysctlbyname
    size = ctypes.c_size_t()
    if ask(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)) or not size.value:
        return ""
    room = ctypes.create_string_buffer(size.value)
    if ask(name.encode(), room, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return ""
    value = room.raw[: size.value]
    return value.rstrip(b"\0").decode(errors="replace") if size.value > 8 else value.hex()
