"""Operators between products of matrices whose rows are kept in bfloat16, in domain `ROWS`.

`passes.precision.half_activations` makes them where each reader would round the rows as it takes
them. Sums that go on from block to block of a network stay in float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.lowering import ActivationCode, Array, Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.product_steps import LinearOp, LinearStep, emit_product
from partita_cpu.jit.intrinsics.address_call import address, call_convert, call_normalize
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.half import LINE
from partita_cpu.kernels.nhwc.placement import HALF, STORED, choice_of
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.llvm import activations

ROWS = "partita.rows"
"""Domain of operators that read or write rows in bfloat16; they exist only between passes and
emitters, where there are native kernels."""


@kernel("MatMul", domain=ROWS, dtypes={0: STORED, 1: F32, 2: F32, 3: F32})
def product_of_rows(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Rows by a constant matrix, bias, residual and activation; there are elements in each."""
    depth, columns = w.shape
    y = b.empty((*x.shape[:-1], columns), HALF if node.attrs.get("half") else np.float32)
    images = Images.matrix(x.size // depth, depth, columns)
    storage = Storage(x.dtype == HALF, y.dtype == HALF)
    op = LinearOp(w, bias, residual, node.attrs.get("activation"))
    emit_product(b, choice_of(b), LinearStep(images, x, op, y, storage))
    return y


class RowInputs(NamedTuple):
    """Rows, and a factor and a term for each of their elements; flat float32."""

    x: KernelArray
    scale: KernelArray
    bias: KernelArray


@kernel("LayerNormalization", domain=ROWS, dtypes=F32)
def layer_normalization(
    b: Builder, node: Node, x: Operand, scale: Operand, bias: Operand | None = None
) -> Operand:
    """Normalized rows in bfloat16; factors and terms are as many as a row's elements."""
    axis = axis_of(b.node, node.attrs.get("axis", -1), x.ndim)
    outer, n = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    y = b.empty(x.shape, HALF)
    terms = b.zeros(n, x.dtype) if bias is None else b.flat(bias)
    inputs = RowInputs(b.flat(x), b.flat(scale), terms)
    sizes = outer, n, node.number("epsilon", 1e-5)
    b.call(normalize_halves, inputs, b.flat(y), _kernel(b, "normalize_rows"), *sizes)
    return y


@loop
def normalize_halves(
    inputs: RowInputs, y: Array, kernel: int, outer: int, n: int, epsilon: float, tid: int, nt: int
) -> None:
    """Rows of n floats to mean 0 and variance 1, times scale, plus bias, as bfloat16.

    Args:
        inputs: Rows, factors and terms.
        y: The result.
        kernel: Address of `llvm.normalization.normalize_rows`.
        outer: How many rows.
        n: Elements of one.
        epsilon: What is added to variances.
        tid: This thread.
        nt: All threads; they share rows.
    """
    first, stop = outer * tid // nt, outer * (tid + 1) // nt
    x, to = address(inputs.x) + 4 * first * n, address(y) + 2 * first * n
    row = address(inputs.scale), address(inputs.bias)
    call_normalize(kernel, (stop - first, n, x, row[0], row[1], to, epsilon))


@loop
def activate_halves(x: Array, y: Array, kernel: int, tid: int, nt: int) -> None:
    """An activation of flat bfloat16; threads share whole lines.

    Args:
        x: What is read.
        y: What is written; as many elements.
        kernel: Address of one of `llvm.activations.activate_halves`.
        tid: This thread.
        nt: All threads.
    """
    lines = -(-x.size // LINE)
    start, stop = lines * tid // nt * LINE, min(lines * (tid + 1) // nt * LINE, x.size)
    if start < stop:
        call_convert(kernel, (address(x) + 2 * start, stop - start, address(y) + 2 * start))


@kernel("Gelu", domain=ROWS, dtypes=frozenset({HALF}))
def gelu(b: Builder, node: Node, x: Operand) -> Operand:
    """Gelu of elements in bfloat16, exact or through tanh."""
    y = b.empty(x.shape, HALF)
    if x.size:
        through_tanh = node.attrs.get("approximate", "none") == "tanh"
        name = activations.KERNELS[
            ActivationCode.GELU_TANH if through_tanh else ActivationCode.GELU
        ]
        b.call(activate_halves, b.flat(x), b.flat(y), _kernel(b, f"{name}_halves"))
    return y


def _kernel(b: Builder, name: str) -> int:
    return addresses(choice_of(b).level, "_activated_halves")[name]
