"""Draws of all values of attributes and inputs that matter together."""
