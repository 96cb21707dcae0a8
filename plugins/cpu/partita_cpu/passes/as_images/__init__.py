"""Passes that compute sequences and volumes as images, for which there are kernels."""
