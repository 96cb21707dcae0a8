"""Passes that choose the element types in which weights and activations are kept."""
