"""The model: an ONNX graph as operations and ports, its shapes and its checks."""
