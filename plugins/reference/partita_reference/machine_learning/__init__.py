"""Operators of ONNX-ML, domain ai.onnx.ml: decision trees, vector machines, categories."""
