"""Suites about memory, threads, files and processes."""
