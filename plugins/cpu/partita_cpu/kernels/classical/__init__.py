"""Operators of the domain ai.onnx.ml on numbers: trees, linear models, features of rows."""
