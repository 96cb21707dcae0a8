"""The commands that HETERO brings to ``partita``."""
