"""Suites about the plugin interface: what is promised is kept."""
