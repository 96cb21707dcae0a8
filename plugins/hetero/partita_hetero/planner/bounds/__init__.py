"""Lower bounds: what no placement can beat."""
