"""Emitters of operators on heads: attention, with a cache of keys or without, and rotation."""
