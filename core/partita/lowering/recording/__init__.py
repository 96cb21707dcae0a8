"""Programs that are recorded for a class of shapes, and filled in with the sizes of each."""
