"""Threads that begin in one step, which Ctrl-C cannot divide.

Python's own wait, when they start, for an event, whose lock is taken in Python: Ctrl-C in between
leaves it locked, so that the new thread waits for ever, or comes as a RuntimeError.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


class SystemThread:
    """A thread that ends with the process, if not before.

    Args:
        function: What it does; an error of it is printed.
        *args: What it is given.

    Attributes:
        native_id: By which the system knows it; 0 until it has begun.
    """

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.native_id = 0
        self._function, self._args = function, args
        self._over = threading.Lock()
        self._over.acquire()
        _thread.start_new_thread(self._run, ())

    def join(self, seconds: float) -> bool:
        """Waits for its end; whether that came in time."""
        if not self._over.acquire(timeout=seconds):
            return False
        self._over.release()
        return True

    def _run(self) -> None:
        self.native_id = threading.get_native_id()
        try:
            self._function(*self._args)
        finally:
            self._over.release()
