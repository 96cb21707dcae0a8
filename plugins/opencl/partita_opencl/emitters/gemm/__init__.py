"""Launches of matrix products."""
