"""Emission: the walk that turns the nodes of a graph with concrete shapes into a program."""
