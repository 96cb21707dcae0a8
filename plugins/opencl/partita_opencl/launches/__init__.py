"""Launches that emitters record: kernels, chains to fuse, sizes of work-groups."""
