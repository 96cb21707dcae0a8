"""Kernels from Python's syntax straight to LLVM's language, without numba's type inference."""
