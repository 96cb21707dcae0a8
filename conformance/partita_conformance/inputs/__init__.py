"""Models and node cases that are the same in every run."""
