"""Generators of LLVM IR text; their functions read like the assembly they make."""
