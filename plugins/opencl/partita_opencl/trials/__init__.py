"""Trials of kernels: what a driver must build, run and compute correctly."""
