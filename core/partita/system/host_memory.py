"""How much memory of this machine new work can have, and what is handed back for it."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

_ROOT = Path("/")
_AVAILABLE = re.compile(r"^MemAvailable:\s*(\d+) kB$", re.MULTILINE)


def available_memory(root: Path = _ROOT) -> int | None:
    """Bytes that Linux could hand out without swapping; ``None`` where the system does not say.

    Args:
        root: Where ``proc`` lies.
    """
    try:
        found = _AVAILABLE.search((root / "proc" / "meminfo").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return None if found is None else int(found[1]) * 1024


def give_back_freed() -> None:
    """Hands the pages back in which nothing lies any more, after work that took and freed many.

    The allocator keeps them otherwise, and the process has them beside what it takes next. Does
    nothing where the C library is not glibc.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(ctypes.c_size_t(0))
