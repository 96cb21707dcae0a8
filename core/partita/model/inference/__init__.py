"""ONNX's shape inference: its inputs, its limits, and which of its results are used."""
