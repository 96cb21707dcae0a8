"""Kernels of the CPU device, one file per family of operators; ``table`` finds them."""
