"""Placements by measurement: profiles, trials, races, the accuracy budget."""
