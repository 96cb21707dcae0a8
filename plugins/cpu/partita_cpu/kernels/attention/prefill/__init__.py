"""Attention of many queries over a cache, as a prompt has them: by tiles of matrix products."""
