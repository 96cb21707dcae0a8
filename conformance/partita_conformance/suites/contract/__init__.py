"""Suites about the plugin interface."""
