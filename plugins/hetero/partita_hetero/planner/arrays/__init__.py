"""Placement problems as flat arrays, and compiled loops over them."""
