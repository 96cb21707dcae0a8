"""Functions of one element, from which kernels are composed."""
