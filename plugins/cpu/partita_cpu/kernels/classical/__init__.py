"""Operators of the domain ai.onnx.ml on numbers: trees, vector machines, linear models, features."""
