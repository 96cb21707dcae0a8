"""A lock that threads get in the order in which they asked for it.

Python's own may go again and again to the thread that has just left it: one that makes step after
step for all texts would keep those away that bring a new text, or come for what was made for them.

Ctrl-C may come between any two instructions, and the garbage collector may close what uses the lock
on a thread that has it. So nothing is locked to get it or to leave it: who stands first in the line
has it, each change of the line is one call of a ``deque``, and leaving twice does no harm.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress

from partita.system.living import Living

Bed = tuple[int, threading.Lock]
"""What a thread sleeps on while it waits, and that thread."""


class FairLock:
    """A lock that is got by places in its line.

    Attributes:
        is_lost: Whether this process was forked while another thread had it, which is not here:
            what it guards may be half done for good.
    """

    def __init__(self) -> None:
        self._line: deque[Bed] = deque()
        self.is_lost = False
        _all.add(self)

    @property
    def waiting(self) -> int:
        """Threads that wait for it."""
        return max(0, len(self._line) - 1)

    def place(self) -> Place:
        """What one user of it takes it by, again and again."""
        return Place(self._line)

    def forget_others(self) -> None:
        """Leaves a line in which this thread alone may be, as a child process has to."""
        own = threading.get_ident()
        self.is_lost |= bool(self._line) and self._line[0][0] != own
        for bed in [*self._line]:
            if bed[0] != own:
                self._line.remove(bed)


class Place:
    """A user of a fair lock, for ``with``; not for two threads at once.

    Who must give the lock back even if Ctrl-C comes while a ``with`` is entered or left calls
    :meth:`leave` in a ``finally`` around it.

    Args:
        line: Of those who have the lock (the first) or wait for it, what each of them sleeps on.
    """

    def __init__(self, line: deque[Bed]) -> None:
        self._line = line
        self._bed = 0, threading.Lock()

    def __enter__(self) -> None:
        lock = threading.Lock()  # a new one: somebody may still be about to release the last one
        lock.acquire()
        self._bed = bed = threading.get_ident(), lock
        try:
            self._line.append(bed)
            if self._line[0] is not bed:
                lock.acquire()
        except BaseException:  # Ctrl-C: nobody is here any more to take the lock
            self.leave()
            raise

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Gives the lock back, or the place in the line; does nothing without either."""
        with suppress(ValueError):
            self._line.remove(self._bed)
        # Whoever is first has the lock. It is no matter if he knows, and is awake.
        with suppress(IndexError, RuntimeError):
            self._line[0][1].release()


_all = Living(in_child=FairLock.forget_others)
