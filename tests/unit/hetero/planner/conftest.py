"""A clock that other processes do not move."""

from __future__ import annotations

import time

import pytest


@pytest.fixture(autouse=True, scope="module")
def own_time():
    """Searches end by the time that they compute, whatever else the machine does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", time.thread_time)
        yield
