"""Kernels in LLVM IR for the instruction sets of this machine, and what drives them."""
