"""Suites about numbers: what a device computes is right."""
