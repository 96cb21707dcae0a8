"""Suites of how applications use a device over time: in turns, with tensors of theirs, in parts."""
