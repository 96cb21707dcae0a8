"""Operators on 8-bit integers: quantization, products, convolutions."""
