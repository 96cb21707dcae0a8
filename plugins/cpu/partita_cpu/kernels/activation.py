"""Activations: functions of one element, with parameters."""

from __future__ import annotations

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita_cpu.kernels.numba_jit import jit
from partita_cpu.kernels.table import FLOATS, SIGNED, kernel


@jit
def relu_kernel(x: np.ndarray, y: np.ndarray, tid: int, nt: int) -> None:
    """``y = x`` where x is positive or NaN, else 0."""
    n = x.size
    for i in range(n * tid // nt, n * (tid + 1) // nt):
        y[i] = 0 if x[i] < 0 else x[i]


@kernel("Relu", dtypes=FLOATS | SIGNED)
def relu(b: Builder, node: Node, x: Operand) -> Operand:
    """Relu keeps NaN, as onnxruntime does."""
    y = b.empty(x.shape, x.dtype)
    b.call(relu_kernel, b.flat(x), b.flat(y))
    return y
