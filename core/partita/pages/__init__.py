"""Pages for people: one file each, with its scripts, styles and data, that needs no network."""
