"""Suites about how applications use a device over time."""
