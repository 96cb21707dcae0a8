"""How much processor time a group of processes has used: what tells a slow one from one that hangs.

A clock does not: on a machine that many share, what takes a second may take minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/")

_GROUP, _TIMES = 2, slice(11, 15)
"""Behind a process's name: its group, and its own times and those of children waited for."""


def group_seconds(group: int, root: Path = _ROOT) -> float | None:
    """Processor time that the processes of a group have used so far; ``None``: it is not known.

    It grows while one of them computes, however slowly, and stays as it is while all of them wait.
    It falls when one ends that nobody has waited for. Only Linux tells it, in files: reading them
    takes some milliseconds.

    Args:
        group: The number of the group.
        root: Where the system's files are.
    """
    total, known = 0, False
    for file in root.glob("proc/[0-9]*/stat"):
        try:
            fields = file.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        known = True
        if int(fields[_GROUP]) == group:
            total += sum(map(int, fields[_TIMES]))
    return total / os.sysconf("SC_CLK_TCK") if known else None
