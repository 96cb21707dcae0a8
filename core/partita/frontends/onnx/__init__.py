"""ONNX files: large weights split off, external data found, onnx-ir loaded when it is needed."""
