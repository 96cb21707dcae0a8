"""Compiled models, bound programs, and the calls that run them."""
