"""Reports of a run: JSON, a page, and what may be claimed by them."""
