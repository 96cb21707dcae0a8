"""The commands of ``partita``: one module each, found by their names."""
