"""Tile kernels (microkernels) of products: AMX, dot products of bytes, fused multiply-add."""
