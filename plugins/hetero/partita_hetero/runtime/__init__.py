"""Requests: what runs, in which order, and what happens when a device fails."""
