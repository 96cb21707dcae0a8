"""Operators of ai.onnx.ml on numbers: trees, vector machines, linear models, features."""
