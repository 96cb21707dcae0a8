"""Weights in the order in which tile kernels read them."""
