"""Forks wait for models that other threads compile, and for what Partita imports for them.

A child process has the thread alone that forked: a lock that another one held, of a module that it
imported or of a compiler, is never released there, and who asks for it waits for ever.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # registers with forks, and must before this does
import contextlib
import logging  # noqa: F401  # the same: Python begins with what was registered last
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ClassVar

_MOST_SECONDS = 60.0
"""How long a fork waits: what is compiled may itself wait for who forks."""

_POLL_SECONDS = 0.002
_IMPORTER = "<frozen importlib._bootstrap>"


class _Compiling:
    """Threads that compile, and those that are about to fork, by the thread that they work for.

    Attributes:
        changed: Their lock.
        threads: How often each is within a block that forks wait for.
        forking: Who forks; nobody waits for them, since they may compile, too.
    """

    changed = threading.Condition()
    threads: ClassVar[dict[int, int]] = {}
    forking: ClassVar[set[int]] = set()


class _Local(threading.local):
    """The thread that this one works for, if that is another one."""

    owner: int | None = None


_local = _Local()


def owner() -> int:
    """The thread that this one works for: itself, unless :func:`work_for` says otherwise."""
    return _local.owner or threading.get_ident()


def work_for(thread: int) -> None:
    """Counts this thread as a part of another one, whose forks and blocks are its own."""
    _local.owner = thread


@contextlib.contextmanager
def forks_wait() -> Iterator[None]:
    """Lets no other thread fork the process until the block ends, for a minute at most."""
    thread = owner()
    with _Compiling.changed:
        _Compiling.threads[thread] = _Compiling.threads.get(thread, 0) + 1
    try:
        yield
    finally:
        with _Compiling.changed:
            _leave(thread)


def _leave(thread: int) -> None:
    left = _Compiling.threads.get(thread, 1) - 1
    if left:
        _Compiling.threads[thread] = left
    else:
        _Compiling.threads.pop(thread, None)
        _Compiling.changed.notify_all()


def around_forks(
    before: Callable[[], object], in_parent: Callable[[], object], in_child: Callable[[], object]
) -> None:
    """Has functions called around each fork, the first one when nothing is compiled any more.

    What is registered with Python itself is called before that: a lock that it takes, and that a
    compile needs, would make the two wait for one another.
    """
    _around.append((before, in_parent, in_child))


_around: list[tuple[Callable[[], object], Callable[[], object], Callable[[], object]]] = []


def _before_fork() -> None:
    end = time.monotonic() + _MOST_SECONDS
    _Compiling.changed.acquire()
    _Compiling.forking.add(owner())
    while _Compiling.threads.keys() - _Compiling.forking or _others_import():
        if time.monotonic() > end:
            break
        _Compiling.changed.wait(_POLL_SECONDS)  # Python tells nobody when an import ends
    for before, _, _ in _around:
        before()


def _others_import() -> bool:
    """Whether Partita imports something in another thread; not if one may wait for this one to."""
    frames = sys._current_frames()
    own = frames.pop(threading.get_ident())
    return not _imports(own) and any(_imports(frame, "partita") for frame in frames.values())


def _imports(frame: FrameType | None, asked_by: str = "") -> bool:
    """Whether a thread is within an import, for a module whose name begins so."""
    is_within = False
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load_unlocked" and code.co_filename == _IMPORTER:
            is_within = True
        elif is_within and str(frame.f_globals.get("__name__")).startswith(asked_by):
            return True
        frame = frame.f_back
    return False


def _in_parent() -> None:
    for _, in_parent, _ in _around:
        in_parent()
    _Compiling.forking.discard(owner())
    _Compiling.changed.release()


def _in_child() -> None:
    own = owner()
    own_blocks = _Compiling.threads.get(own)
    _Compiling.changed = threading.Condition()
    _Compiling.threads = {} if own_blocks is None else {own: own_blocks}
    _Compiling.forking = set()
    for _, _, in_child in _around:
        in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
