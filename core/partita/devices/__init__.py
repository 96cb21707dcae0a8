"""Devices: their names, the plugins that provide them, and their settings."""
