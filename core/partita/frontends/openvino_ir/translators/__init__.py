"""Translators of layers, by family; each module registers its own when it is imported."""
