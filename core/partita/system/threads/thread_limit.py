"""What to do where the system lets a process have no more threads or processes."""

from __future__ import annotations

import contextlib
import threading

from partita.system.memory_limits import more_memory

_MORE_THREADS = (
    "let the process have more, by RLIMIT_NPROC (ulimit -u) or the pids of its container"
)


def more_threads() -> str:
    """The advice; in a message it follows on what could not be started.

    Threads need address space for their stacks: where that is limited, so it says.
    """
    return more_memory() or _MORE_THREADS


def is_thread_refused(error: BaseException | None) -> bool:
    """Whether this is Python's error where the system starts no thread."""
    return isinstance(error, RuntimeError) and "start new thread" in str(error)


def lacks_threads(count: int) -> bool:
    """Whether the system refuses so many more threads; some are started to see."""
    done = threading.Event()
    try:
        with contextlib.ExitStack() as ending:
            ending.callback(done.set)
            for _ in range(count):
                threading.Thread(target=done.wait, daemon=True).start()
    except RuntimeError as error:
        if not is_thread_refused(error):
            raise
        return True
    return False
