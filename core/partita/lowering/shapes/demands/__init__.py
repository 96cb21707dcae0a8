"""Demands of operators on the shapes of their inputs and on attributes, by family."""
