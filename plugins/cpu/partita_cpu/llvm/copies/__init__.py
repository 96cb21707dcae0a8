"""Kernels that copy: converted to bfloat16, quantized, looked up, strided, transposed."""
