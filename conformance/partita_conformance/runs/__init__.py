"""Runs: which checks are selected, and the processes in which they run."""
