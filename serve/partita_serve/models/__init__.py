"""Models that are served: the folder they come from, batches, sequences, limits."""
