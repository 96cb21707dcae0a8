"""Placement problems: tasks, values, costs and constraints."""
