"""The cases of `tensors` and `operators` on device OPENCL, whose kernels see other memory."""

from __future__ import annotations

from . import operators, tensors


def case(seed):
    """One case."""
    yield from (tensors, operators)[seed % 2].case(seed, "OPENCL")
