"""Intrinsics for numba functions: calls through addresses, arrays over memory, atomics."""
