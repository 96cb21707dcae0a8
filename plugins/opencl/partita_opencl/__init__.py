"""The OpenCL devices: kernels in OpenCL C 1.2, run through pyopencl."""
