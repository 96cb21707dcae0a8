"""Devices, their memory, and tensors in it."""
