"""Threads: what they do together, how they sleep and wake, and whose turn it is."""
