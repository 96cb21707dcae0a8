"""ONNX's shape inference: what it is given, what it may follow, and what is taken over of it."""
