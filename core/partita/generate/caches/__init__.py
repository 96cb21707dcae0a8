"""Graph rewrites of decoders, with which devices keep their caches of keys and values."""
