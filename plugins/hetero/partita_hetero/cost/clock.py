"""The clock that runs are timed by; in tests, devices of known speed drive another one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator
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

    Others are all processes but this one, those that it has started, such as workers that compile
    kernels, and those of lower priority, which make way for it; and other machines on the same
    hardware. ``None`` where the system does not tell.
    """
    processors, niced = allowed_processors(), os.nice(0) > 0
    try:
        ticks = busy_ticks(Path("/proc/stat").read_text(), processors, niced)
        own = children_ticks(_process_texts(), os.getpid(), niced)
    except OSError:
        return None
    if ticks is None:
        return None
    ended = os.times()
    mine = processor_seconds() + ended.children_user + ended.children_system
    return ((ticks - own) / os.sysconf("SC_CLK_TCK") - mine) / len(processors)


def _process_texts() -> Iterator[str]:
    """What the system tells of each process; those that end meanwhile are left out."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def children_ticks(stats: Iterable[str], parent: int, niced: bool = False) -> int:
    r"""For how many ticks the processes that one has started have worked, and those of theirs.

    Args:
        stats: The texts of ``/proc/*/stat``.
        parent: Number of the process.
        niced: Whether processes of lower priority count.

    Example:
        >>> stat = "{0} (a b) R {1} 0 0 0 0 0 0 0 0 0 3 1 0 0 20 {2} 1 0".format
        >>> stats = [stat(8, 7, 0), stat(7, 1, 0), stat(9, 8, 0), stat(10, 8, 19)]
        >>> children_ticks(stats, 7), children_ticks(stats, 7, niced=True), children_ticks(stats, 9)
        (8, 12, 0)
    """
    started: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for text in stats:
        number, _, rest = text.partition(" (")
        fields = rest.rpartition(") ")[2].split()
        process = int(number)
        started.setdefault(int(fields[_PARENT]), []).append(process)
        counts = niced or int(fields[_NICE]) <= 0
        ticks[process] = sum(map(int, fields[_TICKS])) if counts else 0
    found, open_ones = 0, [parent]
    while open_ones:
        own = started.get(open_ones.pop(), [])
        found += sum(ticks[process] for process in own)
        open_ones += own
    return found


_PARENT, _TICKS, _NICE = 1, slice(11, 15), 16
"""Behind the name in a line of ``/proc/PID/stat``: the number of the process that started it; what
it and its ended children have worked, in user and system; and how much it makes way for others."""


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
