"""The clock that runs are timed by; in tests, devices of known speed drive another one."""

from __future__ import annotations

import time


def seconds() -> float:
    """Seconds since some moment."""
    return time.perf_counter()


def processor_seconds() -> float:
    """Seconds that all threads of this process have spent on processors."""
    return time.process_time()


def sleep(seconds: float) -> None:
    """Lets time pass."""
    time.sleep(seconds)
