"""Partitioning: the graph, its parts, and the submodels made of them."""
