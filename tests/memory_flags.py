"""What Linux was told of memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

HAS_LARGE_PAGES = (
    sys.platform.startswith("linux") and Path("/sys/kernel/mm/transparent_hugepage").exists()
)
"""Whether the system gives large pages where it is asked to."""


def flags_of(array: np.ndarray) -> list[str]:
    """Flags of the memory that an array begins in, "hg" where large pages are asked for."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and ":" not in first:
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= array.ctypes.data < high
        elif inside and first == "VmFlags:":
            return rest.split()
    return []
