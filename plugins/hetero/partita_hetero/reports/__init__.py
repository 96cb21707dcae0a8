"""Pages, pictures and GraphViz files of placements."""
