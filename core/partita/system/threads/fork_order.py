"""Forks wait for models that other threads compile, and for what Partita imports for them.

A child process has the thread alone that forked: a lock that another one held, of a module that it
imported or of a compiler, is never released there, and who asks for it waits for ever. What other
threads do is read off their frames, so that nothing else pays for it.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # registers with forks, and must before this does
import logging  # noqa: F401  # the same: Python begins with what was registered last
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])
Action = Callable[[], object]

_MOST_SECONDS = 60.0
"""How long a fork waits: what is compiled may itself wait for who forks."""

_POLL_SECONDS = 0.002
_IMPORTER = "<frozen importlib._bootstrap>"


class _Local(threading.local):
    """The thread that this one works for, if that is another one."""

    owner: int | None = None


_local = _Local()
_waited_for: set[CodeType] = set()
_around: list[tuple[Action, Action, Action]] = []


def owner() -> int:
    """The thread that this one works for: itself, unless :func:`work_for` says otherwise."""
    return _local.owner or threading.get_ident()


def work_for(thread: int) -> None:
    """Counts this thread as a part of another one, for which its forks do not wait."""
    _local.owner = thread


def forks_wait(function: F) -> F:
    """Decorates a function that no other thread's fork comes into, for a minute at most."""
    _waited_for.add(function.__code__)
    return function


def around_forks(before: Action, in_parent: Action, in_child: Action) -> None:
    """Has functions called around each fork, the first one when nothing is compiled any more.

    What is registered with Python itself is called before that: a lock that it takes, and that a
    compile needs, would make the two wait for one another.
    """
    _around.append((before, in_parent, in_child))


def _before_fork() -> None:
    end = time.monotonic() + _MOST_SECONDS
    while _others_compile() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    for before, _, _ in _around:
        before()


def _others_compile() -> bool:
    frames = sys._current_frames()
    own = frames.pop(threading.get_ident())
    frames.pop(owner(), None)
    if _is_within_import(own):
        return False  # which another thread may wait for
    return any(map(_is_waited_for, frames.values()))


def _is_within_import(frame: FrameType | None) -> bool:
    while frame is not None and not _imports(frame.f_code):
        frame = frame.f_back
    return frame is not None


def _is_waited_for(frame: FrameType | None) -> bool:
    """Whether a thread compiles, or is within an import that Partita has asked for."""
    imports = False
    while frame is not None:
        code = frame.f_code
        if code is _before_fork.__code__:
            return False  # it forks itself
        if code in _waited_for:
            return True
        if _imports(code):
            imports = True
        elif imports and str(frame.f_globals.get("__name__")).startswith("partita"):
            return True
        frame = frame.f_back
    return False


def _imports(code: CodeType) -> bool:
    return code.co_name == "_find_and_load_unlocked" and code.co_filename == _IMPORTER


def _in_parent() -> None:
    for _, in_parent, _ in _around:
        in_parent()


def _in_child() -> None:
    for _, _, in_child in _around:
        in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
