"""The entry points by which installed packages bring plugins, read again only when they change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from partita.contract import hookspecs
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

DISABLE_VARIABLE = "PARTITA_DISABLE_PLUGINS"
"""Environment variable: comma-separated entry-point names that are not loaded."""

_lock = InterruptSafeLock()


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """One entry point of a package.

    Attributes:
        entry: The entry point itself.
        distribution: The package that brings it; "unknown" if none does.
        release: The package and its version; empty if none brings it.
    """

    entry: metadata.EntryPoint
    distribution: str
    release: str


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was found, and where and how it was looked for.

    Attributes:
        read: The function of ``importlib.metadata`` that was asked.
        finders: What it asks.
        folders: Folders that it looks into, each with the time of its last change.
        found: The entry points.
    """

    read: Callable[..., Any]
    finders: tuple[Any, ...]
    folders: tuple[tuple[str, int], ...]
    found: tuple[PluginEntry, ...]


class _Last:
    """The last reading."""

    reading: _Reading | None = None


def plugin_entries() -> tuple[PluginEntry, ...]:
    """All entry points of the group that Partita's plugins are in.

    ``importlib.metadata`` opens a file of every installed package, 5 ms for 50 packages. Its answer
    stays until a folder of ``sys.path`` changes, as one does when a package is installed or
    removed.
    """
    read, finders = metadata.entry_points, tuple(sys.meta_path)
    folders = tuple((path, _changed(path)) for path in sys.path)
    last = _Last.reading
    if last is None or (last.read, last.finders, last.folders) != (read, finders, folders):
        with _lock:
            found = tuple(_described(read(group=hookspecs.PROJECT)))
        last = _Last.reading = _Reading(read, finders, folders, found)
    return last.found


def _changed(folder: str) -> int:
    """When a folder, or an archive of packages, last changed; 0 if it is not there."""
    try:
        return Path(folder).stat().st_mtime_ns
    except (OSError, ValueError):  # a path may be any text
        return 0


def _described(entries: Iterable[metadata.EntryPoint]) -> Iterable[PluginEntry]:
    """Adds the packages, whose metadata are each read only once."""
    releases: dict[metadata.Distribution, tuple[str, str]] = {}
    for entry in entries:
        if entry.dist is None:
            yield PluginEntry(entry, "unknown", "")
            continue
        if entry.dist not in releases:
            about = entry.dist.metadata
            releases[entry.dist] = about["Name"], f"{about['Name']} {about['Version']}"
        yield PluginEntry(entry, *releases[entry.dist])


def disabled_plugins() -> set[str]:
    """Names of the entry points that :data:`DISABLE_VARIABLE` disables."""
    return {name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",")}
