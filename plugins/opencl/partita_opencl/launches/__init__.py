"""What emitters record: kernels to launch, chains to fuse, sizes of work-groups."""
