"""Reports of a run: JSON, a page, and the table of supported operators."""
