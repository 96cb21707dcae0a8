"""Compiled loops over images with channels last (NHWC), and attention."""
