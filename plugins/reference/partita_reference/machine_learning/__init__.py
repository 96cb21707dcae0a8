"""Operators of domain `ai.onnx.ml`: ensembles of decision trees, support vector machines."""
