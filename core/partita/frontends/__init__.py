"""Readers of model files: each format becomes a graph of standard ONNX operators."""
