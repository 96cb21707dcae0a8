"""Methods that find placements."""
