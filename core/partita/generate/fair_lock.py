"""A lock that threads get in the order in which they asked for it.

Python's own may go again and again to the thread that has just left it: one that makes step after
step for all texts would keep those away that bring a new text, or come for what was made for them.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """A lock for ``with``; a thread that has it must not ask for it again."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def waiting(self) -> int:
        """Threads that wait for it."""
        return len(self._waiting)

    def __enter__(self) -> None:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # Ctrl-C: nobody is here any more to take the turn
            with self._guard:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._pass_on()
            raise

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._is_taken = False
