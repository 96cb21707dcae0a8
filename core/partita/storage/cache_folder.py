"""The one private folder of this user on disk: who may have written what is read from it.

Machine code, compiled programs, measured costs and models are kept there between processes. Whoever
can write them decides what a process computes, or what it executes. So a folder is used only if no
other user can put anything into it, and a file is read only if no other user can have written it.
The administrator (user 0) is trusted: who may do anything gains nothing by a file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

CACHE_VARIABLE = "PARTITA_CACHE_DIR"
"""Environment variable: the folder that holds Partita's caches; set to nothing, none are kept."""

CACHES_OF_USERS = "XDG_CACHE_HOME"
"""Environment variable: where all programs of a user keep their caches, on Linux."""

_log = logging.getLogger("partita")
warned_of: set[str] = set()
_checked: dict[tuple[Path, str], Path] = {}
"""Folders that no other user can put anything into. What is above them is looked at once, since
only this user could change it: loading a model's kernels asks a hundred times."""
_MOST_LINKS = 40
_DAY = 86_400.0
_SEAL_BYTES = 32
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(kind: str) -> Path | None:
    """A folder that only this user can write to; it is there when this returns.

    Folders that are missing are made, for this user alone. Links above the cache folder are
    followed if they are this user's or the administrator's, below it none is. The first time that
    a folder cannot be used, a warning says why.

    Args:
        kind: What is kept there, as ``"cpu"``; parts of a longer path are separated by ``/``.

    Returns:
        The folder, its links resolved; ``None`` if it cannot be used, or if ``PARTITA_CACHE_DIR``
        is set to nothing.
    """
    root = cache_root()
    if root is None:
        return None
    known = _checked.get((root, kind))
    if known is not None and _is_private_folder(known):
        return known
    try:
        folder = _checked[root, kind] = _private_folder(root, kind)
        return folder
    except OSError as error:
        where = root.joinpath(*kind.split("/")) if _is_folder(root) else root
        _warn_once(
            f"Nothing is kept in '{where}': {_reason(error)}. Fix that, or set {CACHE_VARIABLE} "
            "to another folder."
        )
        return None


def read_private(path: Path) -> bytes | None:
    """What a file holds; ``None`` if it is not there or may have been written by others.

    Only regular files are read: no links, FIFOs, sockets or devices. The first time that a file is
    refused, a warning says why.
    """
    try:
        with open_private(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(f"'{path}' is not read: {_reason(error)}.")
        return None


def open_private(path: Path) -> BufferedReader:
    """Opens a file for reading that no other user can have written.

    Raises:
        FileNotFoundError: It is not there.
        OSError: It cannot be opened, is no regular file, belongs to another user, or others may
            write to it.
    """
    descriptor = os.open(
        path,
        os.O_RDONLY  # of systems without one of the others, files have no owner that counts
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_CLOEXEC", 0)
        | getattr(os, "O_BINARY", 0),
    )
    try:
        _check(os.fstat(descriptor), stat.S_ISREG, "regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_private(path: Path) -> bool:
    """Whether :func:`read_private` would read a file of this name; the file is not opened."""
    try:
        _check(path.lstat(), stat.S_ISREG, "regular file")
    except OSError:
        return False
    return True


def write_private(path: Path, *parts: bytes | memoryview) -> None:
    """Writes a file that only this user can read and write; readers see all of it or none.

    It is written beside its place and moved there, in place of any file or link.

    Args:
        path: In a folder that is there.
        parts: What it holds, one after the other.

    Raises:
        OSError: It cannot be written.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    beside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def keep_private(path: Path, *parts: bytes | memoryview) -> bool:
    """Writes a file as :func:`write_private`, without which the next process only takes longer.

    The first time that files of a folder cannot be written, as on a full disk, a warning says why.

    Returns:
        Whether it was written.
    """
    try:
        write_private(path, *parts)
    except OSError as error:
        _warn_of_no_room(path.parent, error)
        return False
    return True


def has_room(folder: Path, nbytes: int) -> bool:
    """Whether so much can be written to a folder now; nothing is left there.

    The first time that it cannot, a warning says why. For systems that have ``posix_fallocate``.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
    except OSError as error:
        _warn_of_no_room(folder, error)
        return False
    return True


def _warn_of_no_room(folder: Path, error: OSError) -> None:
    _warn_once(
        f"Nothing more is kept in '{folder}': {_reason(error)}. What is missing there, "
        f"each process makes anew. Fix that, or set {CACHE_VARIABLE} to another folder."
    )


def keep_sealed(path: Path, data: bytes | memoryview) -> bool:
    """Keeps data as :func:`keep_private`, behind a digest of the file's name and of itself.

    Returns:
        Whether it was written.
    """
    return keep_private(path, _seal(path, data), data)


def read_sealed(path: Path) -> bytes | None:
    """What :func:`keep_sealed` has kept in a file of this name and folder.

    Returns:
        The data; empty if the file is damaged, or was kept under another name; ``None`` if it is
        not there or may have been written by others.
    """
    content = read_private(path)
    if content is None:
        return None
    seal, data = content[:_SEAL_BYTES], content[_SEAL_BYTES:]
    return data if seal == _seal(path, data) else b""


def _seal(path: Path, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}\0".encode())
    digest.update(data)
    return digest.digest()


def prune(folder: Path, most: int) -> None:
    """Deletes the half of a folder's files that was used longest ago, if there are too many.

    Folders in it stay. Other processes may do the same, and read the files, meanwhile.

    Up to ``most`` files are not too many.

    Raises:
        OSError: The folder or a file cannot be read or changed.
    """
    with os.scandir(folder) as entries:
        files = [Path(entry) for entry in entries if entry.is_file(follow_symlinks=False)]
    if len(files) <= most:
        return
    times = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            times[file] = file.lstat().st_mtime
    for file in sorted(times, key=times.__getitem__)[: len(times) // 2]:
        file.unlink(missing_ok=True)


def mark_used(path: Path) -> None:
    """Notes that a file is used now, to the day, so that :func:`prune` deletes others first."""
    with contextlib.suppress(OSError):  # it is gone, or the folder may only be read
        if time.time() - path.lstat().st_mtime > _DAY:
            os.utime(path)


def make_private(folder: Path) -> None:
    """Makes a folder and those above it that are missing, each for this user alone.

    Raises:
        OSError: It cannot be made.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            one.mkdir(mode=0o700)


def cache_root() -> Path | None:
    """The folder above all of :func:`cache_folder`, unchecked; ``None`` if nothing is kept."""
    configured = os.environ.get(CACHE_VARIABLE)
    if configured is None:
        return _of_the_system(os.environ.get("HOME"), os.environ.get(CACHES_OF_USERS))
    return Path(configured).expanduser().absolute() if configured else None


@functools.cache
def _of_the_system(home: str | None, caches: str | None) -> Path:
    """Where the system wants caches; its variables are given since it reads them anew each time."""
    from platformdirs import user_cache_path

    return user_cache_path("partita", appauthor=False)


def users_caches() -> Path:
    """The folder that other programs keep their caches in, such as drivers what they build."""
    from platformdirs import user_cache_path

    return user_cache_path()


def _private_folder(root: Path, kind: str) -> Path:
    folder = _without_links(root)
    make_private(folder)
    _check(folder.lstat(), stat.S_ISDIR, "folder", may_be_sticky=True)
    for part in kind.split("/"):
        folder /= part
        _check(_made(folder), stat.S_ISDIR, "folder")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError("this user may not read it")
    return folder


def _made(folder: Path) -> os.stat_result:
    """What there is of that name, a folder of this user alone if there was nothing."""
    try:
        return folder.lstat()
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # another process was faster
            folder.mkdir(mode=0o700)
        return folder.lstat()


def _without_links(path: Path) -> Path:
    """Where a path leads, by no link of another user's.

    Raises:
        OSError: One is another user's, or there are too many.
    """
    if os.name != "posix":
        return path
    done = Path(path.anchor)
    left = list(reversed(path.parts[1:]))
    links = 0
    while left:
        part = left.pop()
        here = done.parent if part == ".." else done / part
        try:
            status = here.lstat()
        except FileNotFoundError:
            done = here
            continue
        if not stat.S_ISLNK(status.st_mode):
            done = here
            continue
        links += 1
        if not _trusted(status.st_uid) or links > _MOST_LINKS:
            why = f"'{here}' is a link of user {status.st_uid}, who could lead it elsewhere"
            raise OSError("there are too many links" if links > _MOST_LINKS else why)
        target = here.readlink()
        left.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
        if target.is_absolute():
            done = Path(target.anchor)
    return done


def _is_private_folder(path: Path) -> bool:
    try:
        _check(path.lstat(), stat.S_ISDIR, "folder")
    except OSError:
        return False
    return True


def _check(
    status: os.stat_result, is_kind: Callable[[int], bool], kind: str, may_be_sticky: bool = False
) -> None:
    """Refuses what is of another kind, or could be written by another user.

    Args:
        status: What was found.
        is_kind: Whether a mode is of the kind.
        kind: Its name, for messages.
        may_be_sticky: Whether others may write to it where they cannot rename or remove what is
            not theirs, as in ``/tmp``; then all that is in it must be looked at.

    Raises:
        OSError: It is; says what was found.
    """
    if not is_kind(status.st_mode):
        raise OSError(f"it is no {kind}")
    if os.name != "posix":
        return
    if not _trusted(status.st_uid):
        raise PermissionError(f"it belongs to another user, {status.st_uid}")
    if may_be_sticky and status.st_mode & stat.S_ISVTX:
        return
    if status.st_mode & _OTHERS_WRITE:
        raise PermissionError(
            f"others may write to it (its mode is {stat.S_IMODE(status.st_mode):o}; 'chmod go-w' "
            "changes that)"
        )


def _trusted(user: int) -> bool:
    return user in (0, os.geteuid())


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # what is above it cannot be looked into
        return False


def _warn_once(message: str) -> None:
    if message not in warned_of:
        warned_of.add(message)
        _log.warning("%s", message)
