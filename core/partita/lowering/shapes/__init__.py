"""Shapes and types of results: rules, prediction, and classes of shapes."""
