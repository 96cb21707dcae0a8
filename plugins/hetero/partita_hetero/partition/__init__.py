"""Partitioning: the graph, its subgraphs, and the submodels made of them."""
