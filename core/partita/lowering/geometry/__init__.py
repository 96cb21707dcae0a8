"""Positions of windows and of resampled axes of an operator."""
