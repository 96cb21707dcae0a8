"""The end of the process waits for runs of daemon threads, which pyopencl would not survive.

While Python before 3.14 finalizes, a thread that comes back from a call without the interpreter's
lock is ended by unwinding its stack. Through pyopencl, which is C++, that aborts the process. So
runs that have begun end first, and other threads than the main one begin no further ones.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

_MOST_SECONDS = 30.0
"""How long the end waits: a driver may hang."""

_POLL_SECONDS = 0.002

_runs: set[CodeType] = set()


class _State:
    """Whether the process ends."""

    ending = False


def end_waits(function: F) -> F:
    """Decorates a function of runs, which is to begin with :func:`refuse_at_end`."""
    _runs.add(function.__code__)
    return function


def refuse_at_end(error: type[Exception]) -> None:
    """Raises an error in a thread that begins something while the process ends.

    The main thread may: functions that an application registered for the end run there.

    Raises:
        Exception: The process ends; what `error` is.
    """
    if _State.ending and threading.current_thread() is not threading.main_thread():
        raise error("The process ends; nothing can be started any more.")


def _wait_for_runs() -> None:
    _State.ending = True
    end = time.monotonic() + _MOST_SECONDS
    while _others_run() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def _others_run() -> bool:
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return any(map(_is_in_run, frames.values()))


def _is_in_run(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _runs:
        frame = frame.f_back
    return frame is not None


atexit.register(_wait_for_runs)
