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

    Others are all processes but this one and those of lower priority, which make way for it, and
    other machines on the same hardware. ``None`` where the system does not tell.
    """
    processors = allowed_processors()
    try:
        ticks = busy_ticks(Path("/proc/stat").read_text(), processors, os.nice(0) > 0)
    except OSError:
        return None
    if ticks is None:
        return None
    return (ticks / os.sysconf("SC_CLK_TCK") - processor_seconds()) / len(processors)


def busy_ticks(stat: str, processors: Collection[int], niced: bool = False) -> int | None:
    r"""For how many ticks processors have worked; ``None`` if one of them is not there.

    Args:
        stat: The text of ``/proc/stat``.
        processors: Their numbers.
        niced: Whether processes of lower priority count.

    Example:
        >>> stat = "cpu  1 2 3 4 5 6 7 8\ncpu0 1 50 2 90 9 0 3 1 0 0\ncpu1 5 0 0 99 0 0 0 0 0 0"
        >>> busy_ticks(stat, [0]), busy_ticks(stat, [0, 1]), busy_ticks(stat, [2])
        (7, 12, None)
        >>> busy_ticks(stat, [0], niced=True)
        57
    """
    names = {f"cpu{number}" for number in processors}
    rows = [line.split() for line in stat.splitlines() if line.partition(" ")[0] in names]
    if len(rows) < len(names):
        return None
    counted = (*_BUSY, _NICED) if niced else _BUSY
    return sum(int(fields[place]) for fields in rows for place in counted if place < len(fields))


_BUSY, _NICED = (1, 3, 6, 7, 8), 2
"""In a line of ``/proc/stat``: user, system, interrupts (hard and soft), stolen; and those of
processes of lower priority."""


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
