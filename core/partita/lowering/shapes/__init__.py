"""Shapes and types of results: what is asked of them, what is predicted, and classes of shapes."""
