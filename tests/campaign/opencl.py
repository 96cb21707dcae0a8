"""The cases of `tensors` and `operators` on device OPENCL, whose kernels see other memory."""

from __future__ import annotations

import functools

from . import guard, operators, tensors
from .patience import ended_after

SECONDS = 10.0
"""Of processor time for kernels for GPUs, which drivers for processors run many times slower.

A kernel that never ends is not ended by it: Python waits in the driver.
"""


def case(seed):
    """One case; every fourth by the kernels for GPUs, which any device can run."""
    guard_once()
    if seed % 4 == 1:
        with ended_after(SECONDS):
            yield from operators.case(seed, "OPENCL", {"TILING": "LOCAL"})
    elif seed % 4 == 3:
        yield from operators.case(seed, "OPENCL")
    else:
        yield from tensors.case(seed, "OPENCL")


@functools.cache
def guard_once():
    """Before the first case of a process."""
    guard.guard_opencl()
