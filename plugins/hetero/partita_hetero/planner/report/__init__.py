"""A plan explained to people."""
