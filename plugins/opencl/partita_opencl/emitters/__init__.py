"""Emitters, one module per family of operators."""
