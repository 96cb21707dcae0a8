"""Where windows and resampled axes of an operator lie, in numbers."""
