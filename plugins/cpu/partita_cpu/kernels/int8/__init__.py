"""Operators on 8-bit integers: quantisation, products, convolutions."""
