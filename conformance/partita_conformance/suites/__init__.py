"""The checks, one module per suite."""
