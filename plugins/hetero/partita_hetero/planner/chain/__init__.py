"""Chains: tasks that run one after another, as a decoder's layers do, placed to the optimum."""
