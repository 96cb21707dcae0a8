"""Shapes and types of results, told without emitting anything, by family of operators."""
