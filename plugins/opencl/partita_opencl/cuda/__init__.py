"""Launches replayed by NVIDIA's CUDA driver, for which OpenCL only compiles: docs/adr/0049."""
