"""How much memory of this machine new work can have."""

from __future__ import annotations

import re
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
