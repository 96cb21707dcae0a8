"""The clock that runs are timed by; in tests, devices of known speed drive another one."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

from partita.system.processors import allowed_processors


def seconds() -> float:
    """Seconds since some moment."""
    return time.perf_counter()


def processor_seconds() -> float:
    """Seconds that all threads of this process have spent on processors."""
    return time.process_time()


def others_seconds() -> float | None:
    """Seconds for which others have used the processors, on average of those of this process.

    Others are all processes but this one, and other machines on the same hardware. ``None`` where
    the system does not tell.
    """
    processors = allowed_processors()
    try:
        ticks = busy_ticks(Path("/proc/stat").read_text(), processors)
    except OSError:
        return None
    if ticks is None:
        return None
    return (ticks / os.sysconf("SC_CLK_TCK") - processor_seconds()) / len(processors)


def busy_ticks(stat: str, processors: Collection[int]) -> int | None:
    r"""For how many ticks processors have worked; ``None`` if one of them is not there.

    Args:
        stat: The text of ``/proc/stat``.
        processors: Their numbers.

    Example:
        >>> stat = "cpu  1 2 3 4 5 6 7 8\ncpu0 1 0 2 90 9 0 3 1 0 0\ncpu1 5 0 0 99 0 0 0 0 0 0"
        >>> busy_ticks(stat, [0]), busy_ticks(stat, [0, 1]), busy_ticks(stat, [2])
        (7, 12, None)
    """
    names = {f"cpu{number}" for number in processors}
    rows = [line.split() for line in stat.splitlines() if line.partition(" ")[0] in names]
    if len(rows) < len(names):
        return None
    return sum(int(fields[place]) for fields in rows for place in _BUSY if place < len(fields))


_BUSY = (1, 2, 3, 6, 7, 8)
"""In a line of ``/proc/stat``: user, nice, system, interrupts (hard and soft), stolen."""


def lost_share(seconds: float) -> float:
    """The share of some time for which a thread that only counts has no processor."""
    start, began = time.perf_counter(), time.thread_time()
    while time.perf_counter() - start < seconds:
        pass
    elapsed = time.perf_counter() - start
    return min(1.0, max(0.0, 1 - (time.thread_time() - began) / elapsed))


def sleep(seconds: float) -> None:
    """Lets time pass."""
    time.sleep(seconds)
