"""Kernels on images with channels last."""
