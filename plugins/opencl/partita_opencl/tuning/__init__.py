"""Measured tiles: the database, the command, and what is tried."""
