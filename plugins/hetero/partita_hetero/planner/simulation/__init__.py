"""Simulation: the cost of a placement, its timeline, and the constraints it violates."""
