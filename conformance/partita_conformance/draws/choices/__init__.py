"""Draws of all values of choices that matter together."""
