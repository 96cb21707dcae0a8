"""Kernels that copy: split into bfloat16, strided, transposed."""
