"""Temporary folders that do not outlive their process for long, however it ends.

A process that is killed, crashes or is a fork that leaves at once removes nothing. So each process
locks its folders, and the next one that makes some removes those whose lock nobody holds any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path

_TRIES = 16
"""How often a new folder may be taken for one that was left, before its lock was taken."""


class TemporaryFolder:
    """An empty folder for this user alone, among the system's temporary files.

    It is removed with this object, at the end of the process, or after that by the next one that
    makes a folder of the same prefix. Forks of the process may use it until they end, but it goes
    with the process that made it.

    Args:
        prefix: How its name begins.

    Attributes:
        path: The folder.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, prefix: str) -> None:
        _remove_left(prefix)
        self.path, lock = _made(prefix)
        self._removal = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def remove(self) -> None:
        """Removes the folder, what cannot be removed of it excepted; again, it does nothing."""
        self._removal()


def _made(prefix: str) -> tuple[Path, int | None]:
    """A new folder, and the descriptor that holds its lock.

    Raises:
        OSError: It cannot be made.
    """
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):  # taken for one that was left
            lock = _lock(path, wait=True)
            if path.exists():
                return path, lock
            _unlock(lock)
    raise OSError(f"other processes remove each '{prefix}...' of '{tempfile.gettempdir()}'")


def _remove_left(prefix: str) -> None:
    """Removes folders of ended processes of this user."""
    if not hasattr(os, "geteuid"):  # Windows
        return
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # in use, already gone, or no folder
            if path.lstat().st_uid != os.geteuid():
                continue
            lock = _lock(path, wait=False)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                _unlock(lock)


def _lock(path: Path, *, wait: bool) -> int | None:
    """Locks a folder until the last process that got the lock, such as a fork, has ended.

    Args:
        path: The folder.
        wait: Wait until nobody else holds its lock; otherwise that is an error.

    Returns:
        What holds the lock; ``None`` where the system, or that of files, has none.

    Raises:
        OSError: Another process holds it, or it is no folder.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError) or not isinstance(error, OSError):
            raise
        return None
    return descriptor


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _remove(path: Path, lock: int | None, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(path, ignore_errors=True)
        _unlock(lock)
