"""Mixtures of experts: each token goes through the few sets of weights that it chooses."""
