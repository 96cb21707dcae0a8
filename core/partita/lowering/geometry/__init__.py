"""Geometry of operators: windows, resampled axes, slices, ranges, shapes that are broadcast."""
