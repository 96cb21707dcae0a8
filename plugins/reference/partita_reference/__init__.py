"""Device REFERENCE: the ONNX project's own reference evaluator, slow and complete."""
