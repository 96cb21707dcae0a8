"""Inputs and outputs of a request: converted, checked, and bound to the memory of its calls."""
