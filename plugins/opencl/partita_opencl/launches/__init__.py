"""Launches that emitters record: kernels, moves of elements, chains to fuse, work-group sizes."""
