"""Tiles of matrix products: AMX, dot products of bytes, fused multiply-add."""
