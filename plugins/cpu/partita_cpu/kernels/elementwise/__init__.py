"""Operators that work on each element."""
