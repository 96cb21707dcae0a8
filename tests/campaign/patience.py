"""An end for programs that never end: a Loop of 2**62 trips is no fault of who runs it."""

from __future__ import annotations

import contextlib
import signal


class OutOfTime(BaseException):
    """The time of a case is over; no error, so that nobody takes it for a device's failure."""


@contextlib.contextmanager
def ended_after(seconds):
    """Raises `OutOfTime` in the block once it has had so much processor time."""

    def end(number, frame):
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
