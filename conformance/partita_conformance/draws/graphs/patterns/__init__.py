"""Patterns of operators that compilers fuse, and others that differ from them in one thing.

A matcher that is too wide takes the others for the one it knows.
"""
