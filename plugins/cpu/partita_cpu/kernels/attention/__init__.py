"""Attention, and small fused operators of transformers."""
