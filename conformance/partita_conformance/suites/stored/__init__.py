"""Checks of what is stored: weights, blobs, keys of caches, and models beside each other."""
