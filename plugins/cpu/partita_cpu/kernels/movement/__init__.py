"""Operators that move, pick and place elements."""
