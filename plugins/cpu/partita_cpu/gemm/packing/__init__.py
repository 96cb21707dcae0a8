"""Packing: weights in the order in which tile kernels read them."""
