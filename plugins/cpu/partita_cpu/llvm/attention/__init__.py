"""Kernels of attention over a cache: of many queries by tiles of products, of few by rows."""
