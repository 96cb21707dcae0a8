"""Which processor this machine has, as its system tells: its name, and what tells it from others.

What is compiled or measured for one processor may be kept in a home folder that machines of other
processors share. So there is one answer for everything that is kept.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

_ROOT = Path("/")


def processor_name(root: Path = _ROOT) -> str:
    """What a person calls the processor; what Python says of it if the system does not tell.

    Args:
        root: Where Linux's files are.
    """
    if sys.platform == "darwin":
        return _of_macos("machdep.cpu.brand_string") or platform.machine()
    name = _of_windows("ProcessorNameString") if sys.platform == "win32" else _name_of_linux(root)
    return name or platform.processor() or platform.machine()


def processor_identity(root: Path = _ROOT) -> str:
    """All that the system tells of what the processor can do; empty if it tells nothing.

    Args:
        root: Where Linux's files are.
    """
    if sys.platform == "darwin":
        names = "machdep.cpu.brand_string", "hw.cputype", "hw.cpusubtype", "hw.cpufamily"
        facts = [_of_macos(name) for name in names]
    elif sys.platform == "win32":
        names = "VendorIdentifier", "Identifier", "ProcessorNameString"
        facts = [_of_windows(name) for name in names]
    else:
        lines = _first_processor(root)
        facts = [f"{key}: {lines[key]}" for key in _MATTERS if key in lines]
    return "\n".join((platform.machine(), *facts)) if any(facts) else ""


def processor_family(root: Path = _ROOT) -> tuple[str, int]:
    """Who made a processor of x86, and its family: ``("AuthenticAMD", 25)``.

    ``("", 0)`` where the system tells neither, as macOS does.

    Args:
        root: Where Linux's files are.
    """
    if sys.platform == "darwin":
        return "", 0
    if sys.platform == "win32":
        words = _of_windows("Identifier").split()
        vendor = _of_windows("VendorIdentifier")
        number = words[words.index("Family") + 1] if "Family" in words[:-1] else ""
    else:
        lines = _first_processor(root)
        vendor, number = lines.get("vendor_id", ""), lines.get("cpu family", "")
    return (vendor, int(number)) if vendor and number.isdecimal() else ("", 0)


# ------------------------------------------------------------------------------------ Linux

_NAMES = ("model name", "cpu model", "Processor", "cpu", "uarch")

_PARTS = {
    "0x41 0xd03": "ARM Cortex-A53",
    "0x41 0xd05": "ARM Cortex-A55",
    "0x41 0xd07": "ARM Cortex-A57",
    "0x41 0xd08": "ARM Cortex-A72",
    "0x41 0xd0b": "ARM Cortex-A76",
    "0x41 0xd0c": "ARM Neoverse N1",
    "0x41 0xd40": "ARM Neoverse V1",
    "0x41 0xd41": "ARM Cortex-A78",
    "0x41 0xd42": "ARM Cortex-A78AE",
    "0x41 0xd49": "ARM Neoverse N2",
    "0x41 0xd4f": "ARM Neoverse V2",
    "0x41 0xd83": "ARM Neoverse V3AE",
    "0x41 0xd84": "ARM Neoverse V3",
    "0x41 0xd8e": "ARM Neoverse N3",
    "0x48 0xd01": "HiSilicon Kunpeng 920",
    "0xc0 0xac3": "AmpereOne",
    "0xc0 0xac4": "AmpereOne A",
}
"""Processors that do not tell their name, by implementer and part (as util-linux lists them)."""


def _name_of_linux(root: Path) -> str:
    """As ``/proc/cpuinfo`` names it; where it holds only numbers, by these."""
    fields = _first_processor(root)
    for key in _NAMES:
        if fields.get(key, "").strip("0123456789"):
            return fields[key]
    implementer, part = fields.get("CPU implementer"), fields.get("CPU part")
    if implementer and part:
        unknown = f"{platform.machine()} processor, implementer {implementer}, part {part}"
        return _PARTS.get(f"{implementer} {part}", unknown)
    return ""


_MATTERS = (
    "vendor_id",
    "cpu family",
    "model",
    "stepping",
    "flags",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
    "Features",
    "cpu",
    "revision",
    "uarch",
    "isa",
    "CPU Family",
    "Model Name",
)


def _first_processor(root: Path) -> dict[str, str]:
    """The lines about one processor, by their names."""
    fields: dict[str, str] = {}
    try:
        with (root / "proc/cpuinfo").open(errors="replace") as file:
            for line in file:
                key, colon, value = line.partition(":")
                if colon:
                    fields.setdefault(key.strip(), value.strip())
                elif "flags" in fields or "Features" in fields or "isa" in fields:
                    break
    except OSError:
        return {}
    return fields


# ------------------------------------------------------------------------- macOS and Windows


def _of_macos(name: str) -> str:
    """What sysctl says, numbers as hexadecimal digits; empty if it does not know the name."""
    import ctypes

    ask = ctypes.CDLL(None).sysctlbyname
    size = ctypes.c_size_t()
    if ask(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)) or not size.value:
        return ""
    room = ctypes.create_string_buffer(size.value)
    if ask(name.encode(), room, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return ""
    value = room.raw[: size.value]
    return value.rstrip(b"\0").decode(errors="replace") if size.value > 8 else value.hex()


def number_of_macos(name: str) -> int:
    """A number that sysctl knows by name; 0 if it does not."""
    text = _of_macos(name)
    return int.from_bytes(bytes.fromhex(text), "little") if text else 0


_PLACE = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


def _of_windows(name: str) -> str:
    """What the registry says of the first processor."""
    import importlib

    winreg: Any = importlib.import_module("winreg")
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _PLACE) as key:
            return str(winreg.QueryValueEx(key, name)[0]).strip()
    except OSError:
        return ""
