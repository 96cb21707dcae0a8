"""The clock that runs are timed by; in tests, devices of known speed drive another one."""

from __future__ import annotations

import time


def seconds() -> float:
    """Seconds since some moment."""
    return time.perf_counter()
