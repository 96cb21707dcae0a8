"""Suites about numbers: the results of a device are right."""
