"""Matrix products: MatMul, Gemm and their fused forms, on numpy's BLAS."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Activation, ActivationCode, Array, Builder, Node, Operand
from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.batched import emit_batches, multiplies_batches
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.gemm.product_steps import LinearOp, emit_matrix_product, stays_stored
from partita_cpu.kernels.half import float32_of, through_float32
from partita_cpu.kernels.linalg.double_product import emit_double_product
from partita_cpu.kernels.linalg.epilogue import BIAS_PER_COLUMN, BIAS_PER_ROW, finish
from partita_cpu.kernels.movement.rearrange import expanded, transposed
from partita_cpu.kernels.operator_table import ALL_FLOATS, DTypes, kernel
from partita_cpu.threads import openblas

_PRODUCTS: DTypes = ALL_FLOATS | frozenset(
    np.dtype(t) for t in (np.int32, np.int64, np.uint32, np.uint64)
)

_ACTIVATIONS = {
    "": ActivationCode.NONE,
    "Relu": ActivationCode.RELU,
    "Tanh": ActivationCode.TANH,
    "Sigmoid": ActivationCode.SIGMOID,
    "LeakyRelu": ActivationCode.LEAKY_RELU,
    "HardSigmoid": ActivationCode.HARD_SIGMOID,
    "Elu": ActivationCode.ELU,
    "Softplus": ActivationCode.SOFTPLUS,
}


def matmul_into(a: Array, b: Array, y: Array, flip_a: bool, flip_b: bool) -> None:
    """``y = a @ b``, with the last two dimensions of either swapped on the way."""
    left = a.swapaxes(-1, -2) if flip_a else a
    right = b.swapaxes(-1, -2) if flip_b else b
    openblas.matmul(left, right, out=y)


def product(
    b: Builder, x: Operand, w: Operand, flip_x: bool = False, flip_w: bool = False
) -> Operand:
    """The matrix product by numpy's rules for any ranks.

    Args:
        b: Records it.
        x: Left matrices [..., rows, terms], or a row of terms.
        w: Right matrices [..., terms, columns], or a column of terms.
        flip_x: Whether the last two dimensions of ``x`` are the other way round.
        flip_w: Whether those of ``w`` are.

    Raises:
        OperandError: The shapes do not fit.
    """
    left = b.view(x, (1, x.size)) if x.ndim == 1 else x
    right = b.view(w, (w.size, 1)) if w.ndim == 1 else w
    m, k = _matrix(left, flip_x)
    rows, n = _matrix(right, flip_w)
    try:
        batch = broadcast(left.shape[:-2], right.shape[:-2])
    except ValueError:
        rows = -1
    if k != rows:
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}) cannot multiply tensors of shapes "
            f"{list(x.shape)} and {list(w.shape)}."
        )
    y = b.empty((*batch, m, n), x.dtype)
    work = y.size * k
    policy = None if b.folding else native_policy(b.options)
    if policy is not None and multiplies_batches(policy, left, right, y, k):
        left = _transposed(b, left) if flip_x else left
        right = _transposed(b, right) if flip_w else right
        emit_batches(b, policy, left, right, y)
    elif y.size and not flip_x and math.prod(right.shape[:-2]) == 1:
        # One matrix on the right: all rows on the left are one matrix too.
        out = b.view(y, (y.size // n, n))
        left = b.view(left, (y.size // n, k))
        right = b.view(right, right.shape[-2:])
        b.call_numpy(matmul_into, left, right, out, False, flip_w, work=work, exec_type="blas")
    elif y.size:
        b.call_numpy(matmul_into, left, right, y, flip_x, flip_w, work=work, exec_type="blas")
    if x.ndim > 1 and w.ndim > 1:
        return y
    kept = [*batch]
    kept += [m] if x.ndim > 1 else []
    kept += [n] if w.ndim > 1 else []
    return b.view(y, kept)


def _product_and_bias(
    b: Builder, x: Operand, w: Operand, flip_x: bool, flip_w: bool, bias: Operand | None
) -> tuple[Operand, Operand | None]:
    """As `product`, and what is left to be added: kernels add constants of columns at once.

    Args:
        b: Records it.
        x: As for `product`.
        w: Likewise.
        flip_x: Likewise.
        flip_w: Likewise.
        bias: What is to be added, if anything is.

    Returns:
        The product, and the bias unless it is in there.
    """
    columns = w.shape[0 if flip_w else -1] if w.ndim == 2 else 0
    added = None
    if bias is not None and bias.const is not None and bias.size == columns:
        added = bias if bias.shape[-1] == columns else None
    y = None if flip_x else emit_double_product(b, x, w, flip_w, added)
    if y is None:
        return product(b, x, w, flip_x, flip_w), bias
    return y, None if added is not None else bias


def _transposed(b: Builder, x: Operand) -> Operand:
    """Matrices with their last two dimensions swapped; constants once for all."""
    *batch, rows, columns = x.shape
    if x.const is None:
        return transposed(b, x, (*range(len(batch)), len(batch) + 1, len(batch)))
    form = Form(x.dtype, (*batch, columns, rows))
    return b.prepack(x, "turned", _transposed_matrices, form=form)


def _transposed_matrices(x: Array) -> Array:
    return np.ascontiguousarray(x.swapaxes(-1, -2))


def _matrix(x: Operand, flip: bool) -> tuple[int, int]:
    rows, columns = x.shape[-2:]
    return (columns, rows) if flip else (rows, columns)


def _scaled(b: Builder, x: Operand, factor: float) -> Operand:
    """`x` times a number, as a new tensor; `x` itself for 1."""
    if factor == 1.0:
        return x
    kind = x.dtype.type
    if x.const is not None:
        form = Form(x.dtype, x.shape)
        return b.prepack(x, ("times", factor), lambda array: array * kind(factor), form=form)
    y = b.empty(x.shape, x.dtype)
    b.call_numpy(np.multiply, x, kind(factor), y)
    return y


@kernel("MatMul", dtypes=_PRODUCTS)
@kernel("MatMul", domain="partita", dtypes=_PRODUCTS)
@functools.partial(through_float32, keeps=stays_stored)
def matmul(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Numpy's product of any ranks; the fused form adds bias and residual and activates."""
    activation = node.attrs.get("activation")
    done = emit_matrix_product(b, x, LinearOp(w, bias, residual, activation))
    if done is not None:
        return done
    x, w = float32_of(b, x), float32_of(b, w)
    y, bias = _product_and_bias(b, x, w, False, False, bias)
    if residual is not None:
        residual = expanded(b, residual, y.shape)
    inner = y.shape[-1] if y.ndim else 1
    finish(b, y, inner, bias, BIAS_PER_COLUMN, residual, activation)
    return y


def _check_gemm(node: Node) -> Reason | None:
    activation = node.attrs.get("activation", "")
    if activation in _ACTIVATIONS:
        return None
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"activation is '{activation}'")


@kernel("Gemm", dtypes=ALL_FLOATS)
@kernel("FusedGemm", domain="com.microsoft", dtypes=ALL_FLOATS, check=_check_gemm)
@through_float32
def gemm(b: Builder, node: Node, x: Operand, w: Operand, c: Operand | None = None) -> Operand:
    """``alpha * x @ w + beta * c`` with c broadcast, then the activation of the fused form."""
    attrs = node.attrs
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
    if w.const is not None or x.const is None:
        w = _scaled(b, w, alpha)
    else:
        x = _scaled(b, x, alpha)
    flips = bool(attrs.get("transA", 0)), bool(attrs.get("transB", 0))
    c = None if c is None or not beta else _scaled(b, c, beta)
    y, c = _product_and_bias(b, x, w, *flips, c)
    m, n = y.shape
    bias, mode, residual = None, BIAS_PER_COLUMN, None
    if c is not None:
        columns = c.shape[-1] if c.ndim else 1
        if c.size == columns == n or c.size == 1:
            bias = expanded(b, c, (n,)) if c.ndim < 2 else expanded(b, b.flat(c), (n,))
        elif columns == 1 and c.size == m:
            bias, mode = c, BIAS_PER_ROW
        else:
            residual = expanded(b, c, y.shape)
    code = _ACTIVATIONS[attrs.get("activation", "")]
    activation = Activation(
        code, attrs.get("activation_alpha", 0.0), attrs.get("activation_beta", 0.0)
    )
    finish(b, y, n, bias, mode, residual, activation)
    return y


@kernel("FusedMatMul", "TransposeMatMul", domain="com.microsoft", dtypes=ALL_FLOATS)
@through_float32
def fused_matmul(b: Builder, node: Node, x: Operand, w: Operand) -> Operand:
    """A MatMul that swaps dimensions of its inputs and scales the result."""
    attrs: dict[str, Any] = node.attrs
    if attrs.get("transBatchA", 0) and x.ndim > 2:
        x = transposed(b, x, (*range(1, x.ndim - 1), 0, x.ndim - 1))
    if attrs.get("transBatchB", 0) and w.ndim > 2:
        w = transposed(b, w, (*range(1, w.ndim - 1), 0, w.ndim - 1))
    w = _scaled(b, w, attrs.get("alpha", 1.0))
    flip_x = bool(attrs.get("transA", 0)) and x.ndim > 1
    flip_w = bool(attrs.get("transB", 0)) and w.ndim > 1
    return product(b, x, w, flip_x, flip_w)
