"""A lock for ``with`` that Ctrl-C never leaves locked, nor a fork.

Up to Python 3.13, ``with`` entered a lock that is written in C by one instruction, behind which
Python does not look for Ctrl-C. Since 3.14 it is a call as any other, behind which Python looks,
and where the lock is not left yet: what was interrupted there would keep it for ever.

So would a thread that has a lock while another one forks: the child has the lock, and not the
thread.
"""

from __future__ import annotations

import sys
from _thread import LockType, RLock

from partita.system.living import Living


def take(lock: LockType | RLock) -> bool:
    """Acquires a lock that a ``try`` right behind this is to release: Ctrl-C comes before or in it.

    Returns:
        ``True``.
    """
    # Python looks when this begins and after `map`, not behind an assignment, nor when a function
    # written in Python returns.
    (is_taken,) = map(lock.acquire, (True,))
    return is_taken


class InterruptSafeLock(RLock):  # type: ignore[misc]  # final for type checkers only
    """A reentrant lock: who waits for it or has it can be interrupted, and it is free again.

    That holds for ``with`` and :func:`take`, not for :meth:`acquire`: between that and a ``try``,
    Ctrl-C may come. In a child process all are free that other threads of the parent had; what they
    guard may be half changed there, and is whoever's who changes it in more than one step.

    Example:
        >>> lock = InterruptSafeLock()
        >>> with lock, lock:
        ...     print("once more")
        once more
    """

    __slots__ = ()

    def __init__(self) -> None:
        _all.add(self)

    if sys.version_info >= (3, 14):
        __enter__ = take


def _free_of_others(lock: InterruptSafeLock) -> None:
    """Frees a lock that another thread had, which a child has not; as Python frees its own."""
    if not lock._is_owned():  # type: ignore[attr-defined]  # types of Python's own lock
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # leave these out


_all = Living(in_child=_free_of_others)
