"""Writers of ONNX operators as IR layers; each module registers its own when it is imported."""
