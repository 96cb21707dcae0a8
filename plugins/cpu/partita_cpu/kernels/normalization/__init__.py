"""Normalization over axes, planes and windows of channels."""
