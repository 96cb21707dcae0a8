"""The disk cache of machine code: files named by a hash of their origin, safe among processes."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import logging
import os
import platform
import re
import sys
from pathlib import Path

from partita.storage.cache_folder import (
    cache_folder,
    cache_root,
    has_room,
    is_private,
    keep_sealed,
    mark_used,
    prune,
    read_sealed,
)
from partita.storage.temporary_folder import TemporaryFolder
from partita.system.processor_identity import processor_identity
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_FEW = 3
"""What is known of the processor, and kernels, of which every model needs more than two."""

FILES = 16_384
"""Files of one machine that are kept, of some 20 kilobytes each; when there are more, the half that
was used longest ago is deleted."""

WRITES_PER_LOOK = 256
"""The first of so many writes of a process counts the files, which takes some milliseconds."""

ROOM = 1 << 22
"""Bytes that the kernels of a large model take."""

_log = logging.getLogger(__name__)
_spare: TemporaryFolder | None = None
"""Where other processes leave files for this one, once the cache was found to be full."""
_lock = InterruptSafeLock()
_writes = itertools.count()
_holding_code: set[Path] = set()
"""Folders in which there was more."""


def read(name: str, key: str) -> bytes | None:
    """What was kept under a name and a key, if it is there and whole.

    Args:
        name: What it is called, for people who look into the folder.
        key: Everything that it depends on.
    """
    for path in _paths(file_name(name, key)):
        data = read_sealed(path)
        if data:
            mark_used(path)
            return data
    return None


def write(name: str, key: str, data: bytes) -> None:
    """Keeps something, if the folder can be written: else it is good for this process alone.

    When there are too many files, those that were used longest ago are deleted.

    A file that was renamed, or copied over another, is none: its code computes something else.
    Processes that come at the same time never see half of one.

    Args:
        name: As for :func:`read`.
        key: As for :func:`read`.
        data: The content.
    """
    path = _path(file_name(name, key))
    if path is None or not keep_sealed(path, data):
        return
    if next(_writes) % WRITES_PER_LOOK == 0:
        try:
            prune(path.parent, FILES)
        except OSError as error:
            _log.info("Machine code cannot be deleted: %s", error)


def keeps() -> bool:
    """Whether files can be kept at all."""
    folder = _folder()
    return folder is not None and os.access(folder, os.W_OK | os.X_OK)


def is_new() -> bool:
    """Whether files can be kept, and hardly anything was yet: no code for this machine.

    Every compile asks. A folder that holds code is not looked into again: to open one of thousands
    of files takes as long as to compile a small model.
    """
    folder = _folder()
    if folder is None or folder in _holding_code:
        return False
    with os.scandir(folder) as entries:
        few = sum(1 for _ in itertools.islice(entries, _FEW)) < _FEW
    if not few:
        _holding_code.add(folder)
    return few


def is_stored(file: str) -> bool:
    """Whether a file of this name was kept, by this user."""
    return any(map(is_private, _paths(file)))


def root_with_room() -> Path | None:
    """The folder of caches in which other processes can leave files for this one.

    It is a temporary one, which goes with this process, where the cache is full.

    Returns:
        The folder; ``None`` if there is none.
    """
    global _spare
    folder = _folder()
    if folder is None:
        return None
    with _lock:  # of two folders the first would go with what processes leave there
        if _spare is None and not has_room(folder, ROOM):
            try:
                _spare = TemporaryFolder("partita-kernels-")
            except OSError as error:
                _log.info("Kernels cannot be made by other processes: %s", error)
                return None
        return cache_root() if _spare is None else _spare.path


def file_name(name: str, key: str) -> str:
    """The name of the file that something is kept in."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    readable = re.sub(r"\W+", "_", name)[:60]
    return f"{readable}-{digest}"


def _folder() -> Path | None:
    return cache_folder(f"cpu/{machine()}")


def _path(file: str) -> Path | None:
    folder = _folder()
    return None if folder is None else folder / file


def _paths(file: str) -> list[Path]:
    """Where a file may be."""
    path = _path(file)
    found = [] if path is None else [path]
    return found if _spare is None else [*found, _spare.path / "cpu" / machine() / file]


@functools.cache
def machine() -> str:
    """A name for all that machine code depends on besides its source: compilers and processor."""
    parts = [sys.version, processor_name()]
    for package in ("numba", "llvmlite"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            version = Path(spec.origin).with_name("_version.py")
            parts.append(version.read_text() if version.exists() else spec.origin)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def knows_processor() -> bool:
    """Whether the system says what the processor has; else only LLVM knows, which takes long."""
    return bool(processor_identity())


@functools.cache
def processor_name() -> str:
    """What distinguishes processors that do not run each other's code.

    A home folder may be shared by machines of different processors, so there must be something.
    """
    identity = processor_identity()
    if identity:
        return identity
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    present = sorted(name for name, there in features.items() if there)
    return f"{platform.machine()} {binding.get_host_cpu_name()} {' '.join(present)}"
