"""Quantized numbers: conversions, and products of bytes in whole numbers."""
