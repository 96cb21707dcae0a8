"""Operators on images: resizing, sampling, boxes of detectors."""
