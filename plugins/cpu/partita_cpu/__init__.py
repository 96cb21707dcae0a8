"""The CPU device: numpy, numba and OpenBLAS."""
