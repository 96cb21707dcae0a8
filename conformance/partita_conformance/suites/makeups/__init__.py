"""Drawn models, each alone and beside similar ones, and what must hold for all of them."""
