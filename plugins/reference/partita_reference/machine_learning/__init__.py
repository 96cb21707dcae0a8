"""Operators of ONNX-ML, domain ai.onnx.ml: decision trees, support vector machines."""
