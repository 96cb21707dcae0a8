"""Passes that say which results products read as tiles of AMX."""
