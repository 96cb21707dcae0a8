"""The cases of `tensors` and `operators` on device OPENCL, whose kernels see other memory."""

from __future__ import annotations

import functools

from . import guard, operators, tensors


def case(seed):
    """One case; every fourth by the kernels for GPUs, which any device can run."""
    guard_once()
    if seed % 2:
        tiling = {"TILING": "LOCAL"} if seed % 4 == 1 else None
        yield from operators.case(seed, "OPENCL", tiling)
    else:
        yield from tensors.case(seed, "OPENCL")


@functools.cache
def guard_once():
    """Before the first case of a process."""
    guard.guard_opencl()
