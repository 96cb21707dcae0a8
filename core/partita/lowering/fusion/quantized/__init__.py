"""Fusion of quantized numbers: products, sums and functions of levels."""
