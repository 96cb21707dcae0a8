"""Judging: expected results, and how close to them a result must be."""
