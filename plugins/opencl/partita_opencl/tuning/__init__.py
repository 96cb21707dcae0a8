"""Tuning: the candidates, the command, and the database of measured tiles."""
