"""The version of Partita."""

__version__ = "0.1.0"
