"""The commands that HETERO adds to ``partita``."""
