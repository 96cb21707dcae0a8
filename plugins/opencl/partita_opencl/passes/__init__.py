"""Graph passes of the OPENCL devices, before emission."""
