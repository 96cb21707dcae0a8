"""Programs that are recorded for a class of shapes, and filled with the numbers of each."""
