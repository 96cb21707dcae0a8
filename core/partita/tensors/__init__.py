"""Tensors, their element types and layouts."""
