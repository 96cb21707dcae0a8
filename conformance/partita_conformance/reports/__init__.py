"""Reports of a run: JSON, a page, and which claims it supports."""
