"""The cases of `tensors` on device OPENCL, whose kernels see other memory than device CPU's."""

from __future__ import annotations

from . import tensors


def case(seed):
    """One case."""
    yield from tensors.case(seed, "OPENCL")
