"""Placement problems: tasks, values, costs, and what a user asks."""
