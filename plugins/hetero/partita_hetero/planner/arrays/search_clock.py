"""The clock of searches: it stands still while the planner's loops are compiled or read."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class _Pauses(threading.local):
    """For how many seconds the clock has stood still in a thread."""

    seconds = 0.0


_pauses = _Pauses()


def seconds() -> float:
    """Seconds since some moment, of which those are left out for which it stood still."""
    return time.perf_counter() - _pauses.seconds


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """Lets the clock of this thread stand still meanwhile; may be nested.

    Example:
        >>> start = seconds()
        >>> with stopped():
        ...     time.sleep(0.05)
        >>> seconds() - start < 0.05
        True
    """
    start = seconds()
    try:
        yield
    finally:
        _pauses.seconds += seconds() - start
