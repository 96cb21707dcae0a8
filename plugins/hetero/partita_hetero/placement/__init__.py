"""Placement: priorities, pins, locks, limits, and the reasons for each decision."""
