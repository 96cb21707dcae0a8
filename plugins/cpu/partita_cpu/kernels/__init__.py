"""Kernels of the CPU device, one file per family of operators; `operator_table` finds them.

Functions under `operator_table.kernel` record what an operator computes as calls of compiled loops,
of native steps (`partita_cpu.nhwc`, `partita_cpu.gemm`) or, where a size is only known then, of
Python.
"""
