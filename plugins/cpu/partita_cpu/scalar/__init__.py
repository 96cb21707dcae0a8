"""Functions of one element, which kernels are made of."""
