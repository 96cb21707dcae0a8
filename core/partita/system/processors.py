"""How many processors this process may use: by its affinity, and by the quota of its container.

A container with a quota of two processors on a machine of 64 sees all 64 of them. Threads for each
would use the quota of a period up in a thirtieth of it, and be stopped until the next one.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

_ROOT = Path("/")

_LATELY_S = 1.0
"""For so long the quota that was found is believed."""


def usable_processors(root: Path = _ROOT) -> int:
    """Processors that this process may use, at least 1: the smaller of affinity and quota.

    A quota of part of a processor counts as a whole one. Both may change while a process lives, so
    they are looked up again and again; a quota, which takes some hundred microseconds on Linux, is
    that of a second ago at most, as a compile asks several times, and small models are compiled in
    few milliseconds.

    Args:
        root: Where the system's files are, ``proc/self/cgroup`` and so on.
    """
    quota = processor_quota(root) if root != _ROOT else _quota_at(time.monotonic() // _LATELY_S)
    allowed = len(allowed_processors())
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def processor_quota(root: Path = _ROOT) -> float | None:
    """How many processors' time the control groups of this process allow; ``None``: no limit.

    The strictest counts of a group and those around it, of versions 1 and 2 of control groups.
    """
    groups, mounts = (_text(root / "proc/self" / name) for name in ("cgroup", "mountinfo"))
    quotas = [
        quota
        for unified, folder in _limiting_folders(groups, mounts, root)
        if (quota := _quota_v2(folder) if unified else _quota_v1(folder)) is not None
    ]
    return min(quotas, default=None)


@functools.lru_cache(maxsize=1)
def _quota_at(_moment: float) -> float | None:
    """This system's quota, looked up once per number that is given."""
    return processor_quota()


def allowed_processors() -> list[int]:
    """Numbers of the processors that the system lets this process run on, in order.

    Where it does not tell which, as many as the machine has, from 0.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    if sys.platform == "win32":
        mask = affinity_of_windows()
        if mask:  # it is 0 for a process in several groups of 64 processors
            return [number for number in range(mask.bit_length()) if mask >> number & 1]
    return list(range(os.cpu_count() or 1))


def affinity_of_windows() -> int:
    """The processors of the process's group that it may run on, one bit each."""
    import ctypes

    kernel: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]  # of Windows
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.GetProcessAffinityMask.argtypes = [ctypes.c_void_p] * 3
    mask, of_machine = ctypes.c_size_t(), ctypes.c_size_t()
    places = ctypes.addressof(mask), ctypes.addressof(of_machine)
    known = kernel.GetProcessAffinityMask(kernel.GetCurrentProcess(), *places)
    return mask.value if known else 0


class _Hierarchy(NamedTuple):
    """One tree of control groups and this process's place in it.

    Attributes:
        unified: Whether it is of version 2.
        mount: The folder where it, or a part of it, can be seen.
        seen: The group that this folder shows.
        group: The group of this process.
    """

    unified: bool
    mount: PurePosixPath
    seen: PurePosixPath
    group: PurePosixPath


@functools.lru_cache(maxsize=8)  # the table of mounts is long, and is read several times a compile
def _limiting_folders(groups: str, mounts: str, root: Path) -> tuple[tuple[bool, Path], ...]:
    """Folders that say how much processor time there is, and whether they are of version 2.

    Args:
        groups: What the system tells of the process's groups.
        mounts: What it tells of mounted folders.
        root: As for :func:`usable_processors`.
    """
    return tuple(
        (hierarchy.unified, folder)
        for hierarchy in _hierarchies(groups, mounts)
        for folder in _around(hierarchy, root)
    )


def _hierarchies(groups: str, mounts: str) -> Iterator[_Hierarchy]:
    """The trees that limit processor time."""
    unified = of_processor = None
    for line in groups.splitlines():
        _, _, named = line.partition(":")
        controllers, _, group = named.partition(":")
        if not controllers:
            unified = PurePosixPath(group)
        elif "cpu" in controllers.split(","):
            of_processor = PurePosixPath(group)
    for line in mounts.splitlines():
        place, _, kind = line.partition(" - ")
        fields, kinds = place.split(" "), kind.split(" ")
        if len(fields) < 5 or len(kinds) < 3:
            continue
        seen, mount = (PurePosixPath(_unescaped(field)) for field in fields[3:5])
        if kinds[0] == "cgroup2" and unified is not None:
            yield _Hierarchy(True, mount, seen, unified)
        elif kinds[0] == "cgroup" and "cpu" in kinds[2].split(",") and of_processor is not None:
            yield _Hierarchy(False, mount, seen, of_processor)


def _around(hierarchy: _Hierarchy, root: Path) -> Iterator[Path]:
    """The folders of a process's group and of those around it, as far as they can be seen.

    In a container a part of the tree is mounted that the group's path may not lie below: then the
    mount is all that is known, and it is the container's own group.
    """
    mount = root / hierarchy.mount.relative_to("/")
    below = PurePosixPath()
    if hierarchy.group.is_relative_to(hierarchy.seen) and ".." not in hierarchy.group.parts:
        below = hierarchy.group.relative_to(hierarchy.seen)
    yield mount / below
    yield from (mount / parent for parent in below.parents)


def _quota_v2(folder: Path) -> float | None:
    """What ``cpu.max`` says: ``"150000 100000"``, or ``"max 100000"`` for no limit."""
    for line in _lines(folder / "cpu.max"):
        return _ratio(*line.split(" ")[:2])
    return None


def _quota_v1(folder: Path) -> float | None:
    """What ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us`` say; a quota of -1 is no limit."""
    for quota in _lines(folder / "cpu.cfs_quota_us"):
        for period in _lines(folder / "cpu.cfs_period_us"):
            return _ratio(quota, period)
    return None


def _ratio(quota: str, period: str = "100000") -> float | None:
    if not (quota.isdecimal() and period.isdecimal()) or not int(quota) or not int(period):
        return None
    return int(quota) / int(period)


def _unescaped(field: str) -> str:
    r"""A path as the system means it: in its table blanks are written ``\040``."""
    for code in ("040", "011", "012", "134"):
        field = field.replace("\\" + code, chr(int(code, 8)))
    return field


def _lines(path: Path) -> list[str]:
    """The lines of a file of the system; none where it has none."""
    return _text(path).splitlines()


def _text(path: Path) -> str:
    """A file of the system; nothing where it has none."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
