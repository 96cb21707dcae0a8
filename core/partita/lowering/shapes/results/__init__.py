"""Inference of result shapes and types, by family of operators."""
