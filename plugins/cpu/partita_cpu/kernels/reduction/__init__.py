"""Reductions along axes, and softmax."""
