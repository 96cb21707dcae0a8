"""Lowering of models to graphs, and operators that are expanded there."""
