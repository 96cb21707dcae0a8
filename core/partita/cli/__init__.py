"""The command line: ``partita devices | query | run | benchmark | zoo | demo``."""
