"""How large the caches of a core are, as its system tells.

Linux lists them below ``/sys``; where that is not to be seen, as in some containers, its C library
asks the processor. macOS answers by name. Elsewhere, and where a virtual machine hides its
processor, sizes are assumed that next to every processor has.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from partita.system.processor_identity import number_of_macos
from partita.system.processors import allowed_processors

_ROOT = Path("/")


class CacheSizes(NamedTuple):
    """Bytes that one core has, its share of those caches that several cores have together.

    Attributes:
        l1d: For data, of the first level.
        l2: Of the second level.
        l3: Of the third level; 0 where there is none.
    """

    l1d: int
    l2: int
    l3: int


ASSUMED = CacheSizes(32 << 10, 256 << 10, 0)
"""Where a system tells nothing: tiles that are too small cost less than those that do not fit."""


def cache_sizes(root: Path = _ROOT) -> CacheSizes:
    """The caches of a core that this process may run on.

    Args:
        root: Where Linux's files are.
    """
    if sys.platform == "darwin":
        sizes = _listed_by_macos()
    else:
        sizes = _listed_by_linux(root) or _listed_by_c_library()
    l1d, l2 = sizes.get(1, 0), sizes.get(2, 0)
    return CacheSizes(l1d or ASSUMED.l1d, l2 or ASSUMED.l2, sizes.get(3, 0))


def _listed_by_linux(root: Path) -> dict[int, int]:
    """Sizes by level, as ``/sys`` lists them; empty if it does not."""
    processor = root / f"sys/devices/system/cpu/cpu{allowed_processors()[0]}"
    threads = _count(_line(processor / "topology/thread_siblings_list"))
    sizes = {}
    for folder in processor.glob("cache/index[0-9]*"):
        level, size = _line(folder / "level"), _line(folder / "size")
        if _line(folder / "type") == "Instruction" or not (level.isdecimal() and size):
            continue
        # Threads of one core count as one.
        cores = max(1, _count(_line(folder / "shared_cpu_list")) // threads)
        sizes[int(level)] = _bytes(size) // cores
    return sizes


_SYSCONF = {1: 188, 2: 191, 3: 194}
"""Numbers of ``_SC_LEVEL1_DCACHE_SIZE`` and so on in GNU's C library, which Python has no names
for."""


def _listed_by_c_library() -> dict[int, int]:
    """Sizes by level, as GNU's C library tells; it knows not how many cores share a cache."""
    if not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return {}
    return {level: max(0, os.sysconf(number)) for level, number in _SYSCONF.items()}


_MACOS = {
    1: ("hw.perflevel0.l1dcachesize", ""),
    2: ("hw.perflevel0.l2cachesize", "hw.perflevel0.cpusperl2"),
    3: ("hw.l3cachesize", "hw.physicalcpu"),
}
_MACOS_OF_INTEL = {1: "hw.l1dcachesize", 2: "hw.l2cachesize"}


def _listed_by_macos() -> dict[int, int]:
    """Sizes by level; of the fast cores, where there are others."""
    sizes = {}
    for level, (name, sharing) in _MACOS.items():
        whole = number_of_macos(name)
        sizes[level] = whole // max(1, number_of_macos(sharing) if sharing else 1)
    for level, name in _MACOS_OF_INTEL.items():
        sizes[level] = sizes[level] or number_of_macos(name)
    return sizes


def _line(file: Path) -> str:
    """What one of the system's files says; empty if it is not there."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _count(listed: str) -> int:
    """How many processors a list such as ``0-3,8`` names, at least 1."""
    total = 0
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            total += (int(last) if last.isdecimal() else int(first)) - int(first) + 1
    return max(1, total)


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _bytes(size: str) -> int:
    """The number that ``48K`` stands for; 0 if it is none."""
    number, unit = (size[:-1], _UNITS[size[-1]]) if size[-1] in _UNITS else (size, 1)
    return int(number) * unit if number.isdecimal() else 0
