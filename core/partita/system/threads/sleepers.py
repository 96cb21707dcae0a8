"""Threads that sleep until something has changed.

Python's own conditions and events get and leave their lock in Python: Ctrl-C in between leaves it
locked, and all others wait for ever. Here nothing is locked that another thread waits for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Sleepers:
    """The threads that sleep."""

    def __init__(self) -> None:
        self._beds: deque[threading.Lock] = deque()

    def wait(self, is_ready: Callable[[], object], seconds: float = -1) -> bool:
        """Sleeps until :meth:`wake` is called; whether that was before the time was over.

        Args:
            is_ready: Called once nobody can be overlooked who wakes; true if there is no need to
                sleep.
            seconds: How long to sleep at most, unless negative.
        """
        bed = threading.Lock()
        bed.acquire()
        try:
            self._beds.append(bed)
            return bool(is_ready()) or bed.acquire(timeout=seconds)
        finally:
            with suppress(ValueError):  # Ctrl-C came before it was there
                self._beds.remove(bed)

    def wake(self) -> None:
        """Wakes all."""
        for bed in [*self._beds]:  # a tuple would be made while it is gone through
            try:
                bed.release()
            except RuntimeError:  # it is awake, and has not gone yet
                continue
