"""What to do where the system lets a process have no more threads or processes."""

from __future__ import annotations

MORE_THREADS = "let the process have more, by RLIMIT_NPROC (ulimit -u) or the pids of its container"
"""The advice; in a message it follows on what could not be started."""


def is_thread_refused(error: BaseException | None) -> bool:
    """Whether this is Python's error where the system starts no thread."""
    return isinstance(error, RuntimeError) and "start new thread" in str(error)
