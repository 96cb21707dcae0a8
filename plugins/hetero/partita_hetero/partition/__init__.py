"""Partitioning: the graph, its subgraphs, and the submodels made of them.

From `op_graph` and a placement, `partitioner` makes subgraphs that can run one after another,
`merge_subgraphs` joins those that need not be apart, and `submodels` cuts a model out for each.
"""
