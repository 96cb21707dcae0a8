"""Suites about stored data: weights, blobs, cache keys, and similar models."""
