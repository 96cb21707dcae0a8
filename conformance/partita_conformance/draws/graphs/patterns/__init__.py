"""Sequences of operators that compilers know as one, and others that differ from them in one thing.

A matcher that is too wide takes the others for the one it knows.
"""
