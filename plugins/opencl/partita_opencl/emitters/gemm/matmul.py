"""MatMul and Gemm: shapes, batches and epilogues brought to the form that products have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import NO_ACTIVATION, Activation, Array, Node, Operand
from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.kernel_table import HALVES, DTypes
from partita_opencl.emitters.elementwise import apply
from partita_opencl.emitters.gemm.bf16_triples import is_triple, triple_product
from partita_opencl.emitters.gemm.matrix_units import (
    Norm,
    normalizes,
    stream_product,
)
from partita_opencl.emitters.gemm.products import Epilogue, Product, activation_of, multiply
from partita_opencl.emitters.gemm.stream import (
    MOST_ROWS,
    Stream,
    StreamOperands,
    packed,
)
from partita_opencl.emitters.normalization import short_rows, single
from partita_opencl.emitters.operator_table import FLOATS, operator
from partita_opencl.launches.emitter_kit import Kit, is_half
from partita_opencl.launches.tensor_moves import expand, transpose
from partita_opencl.passes.half_precision import HALF, SINGLE, narrow
from partita_opencl.passes.nhwc import UNIT

_STORED: Mapping[int, DTypes] = {
    place: FLOATS | HALVES if place == 1 else FLOATS for place in range(4)
}
"""Weights may be stored in 16 bits where the rest is float32."""


@operator("MatMul", types=_STORED)
def matmul(k: Kit, node: Node, a: Operand, b: Operand) -> Operand:
    """Product of matrices, with numpy's rules for vectors and batches."""
    return _matmul(k, node, a, b, None, None)


@operator("MatMul", domain="partita", types=_STORED)
def matmul_fused(
    k: Kit,
    node: Node,
    a: Operand,
    b: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """The product with bias, residual and activation.

    Attribute ``single`` asks for a result in float32, of products that stream; see
    ``passes.stream_fusion``.
    """
    return _matmul(k, node, a, b, bias, residual)


@operator("NormalizedMatMul", domain="partita", outputs=2)
def normalized_matmul(
    k: Kit,
    node: Node,
    a: Operand,
    b: Operand,
    bias: Operand | None,
    residual: Operand | None,
    scale: Operand,
    shift: Operand,
) -> tuple[Operand, Operand]:
    """The product of rows that are normalized first, and these rows; see ``passes.stream_fusion``.

    Rows come in float32 where attribute ``wide`` names them; with ``normal_single``, the
    normalized ones leave in float32.
    """
    epsilon = float(node.attrs["epsilon"])
    rows = a.size // a.shape[-1]
    dtype = SINGLE if node.attrs.get("normal_single", False) else HALF
    if residual is None and _streams(k, a, b, bias, None) and normalizes(k, _dense(rows, b)):
        norm = Norm(k.empty(a.shape, dtype), single(k, scale), single(k, shift), epsilon)
        return _streamed(k, node, a, b, bias, None, norm), norm.out
    wide = k.empty(a.shape, SINGLE) if dtype == SINGLE else None
    normal = short_rows(k, a, scale, shift, epsilon, HALF, wide)
    return _matmul(k, node, normal, b, bias, residual), wide or normal


def _dense(rows: int, b: Operand, *, ragged: bool = False) -> Stream:
    depth, columns = b.shape
    return Stream(
        images=1,
        image=(rows, 1),
        pitch=depth,
        channels=depth,
        filters=columns,
        out=(rows, 1),
        ragged=ragged or columns % UNIT > 0,
    )


def _streams(
    k: Kit, a: Operand, b: Operand, bias: Operand | None, residual: Operand | None
) -> bool:
    """Whether halves stream through matrix units: a product by a constant matrix of whole units."""
    if not k.tuning.matrix_units or b.const is None or b.ndim != 2:
        return False
    rows, columns = a.size // max(1, a.shape[-1]), b.shape[1]
    if a.ndim < 2 or a.shape[-1] % UNIT or not a.size or not columns or rows > MOST_ROWS:
        return False
    if bias is not None and (bias.const is None or bias.size not in (1, columns)):
        return False
    shape = (*a.shape[:-1], columns)
    return residual is None or residual.shape == shape


def _streamed(
    k: Kit,
    node: Node,
    a: Operand,
    b: Operand,
    bias: Operand | None,
    residual: Operand | None,
    norm: Norm | None = None,
) -> Operand:
    """Records a product of few rows of halves, whose weights are read once.

    Args:
        k: The kit.
        node: The operation.
        a: Rows (..., depth).
        b: Weights (depth, columns).
        bias: A term for each column.
        residual: Added to the result, of its shape.
        norm: How rows are normalized before.
    """
    depth, columns = b.shape
    rows = a.size // depth
    single_precision = bool(node.attrs.get("single", False))
    stream = _dense(rows, b, ragged=single_precision)
    out = k.empty((*a.shape[:-1], columns), SINGLE if single_precision else HALF)
    w, row = packed(k, stream, b, bias, transposed=True)
    operands = StreamOperands(a, w, row, residual, out, bias is not None)
    stream_product(k, stream, operands, activation_of(node), norm)
    return out


def _matmul(
    k: Kit, node: Node, a: Operand, b: Operand, bias: Operand | None, residual: Operand | None
) -> Operand:
    """Records a product with what is fused into it, by the way that its types and shapes allow.

    Args:
        k: The kit.
        node: The operation.
        a: The left side.
        b: The right side.
        bias: A term for each column.
        residual: Added to the result, of its shape.
    """
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[max(0, b.ndim - 2)]:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot multiply shapes {list(a.shape)} "
            f"and {list(b.shape)}."
        )
    if is_half(a.dtype) and _streams(k, a, b, bias, residual):
        return _streamed(k, node, a, b, bias, residual)
    if is_triple(k, a, b, bias, residual):
        return triple_product(k, a, b, bias, residual, activation_of(node))
    if is_half(a.dtype):
        b = _half(k, b)
        bias, residual = (None if x is None else _half(k, x) for x in (bias, residual))
    left = a if a.ndim > 1 else k.view(a, (1, a.size))
    right = b if b.ndim > 1 else k.view(b, (b.size, 1))
    shape, left, right, product = _batched(k, left, right)
    final = (*shape[:-2], *shape[-2 + (a.ndim == 1) :][: 2 - (a.ndim == 1) - (b.ndim == 1)])
    if b.ndim == 1 and a.ndim > 1:
        final = shape[:-1]
    out = k.empty(shape, a.dtype)
    epilogue, late = _epilogue(k, out, bias, residual, activation_of(node), product)
    multiply(k, product, left, right, out, epilogue)
    return late(k.view(out, final))


def multiplied_matrices(k: Kit, node: Node, a: Operand, b: Operand) -> Operand:
    """Products of matrices, for any operator.

    Args:
        k: Records it.
        node: What is computed.
        a: The left matrices, (rows, depth) or (batches, rows, depth).
        b: The right ones, (depth, columns) or (batches, depth, columns).
    """
    if a.ndim == 2 or a.shape[0] != 1:
        return _matmul(k, node, a, b, None, None)
    left, right = k.view(a, a.shape[1:]), k.view(b, b.shape[1:])
    y = _matmul(k, node, left, right, None, None)
    return k.view(y, (1, *y.shape))


def _half(k: Kit, x: Operand) -> Operand:
    """A constant that was left in float32 for products that stream, as halves."""
    return x if is_half(x.dtype) else narrow(k, x)


def _epilogue(
    k: Kit,
    out: Operand,
    bias: Operand | None,
    residual: Operand | None,
    activation: Activation,
    product: Product,
) -> tuple[Epilogue, Callable[[Operand], Operand]]:
    """What the product's kernel can add itself, and what has to follow as a step of its own.

    Args:
        k: Records that step.
        out: The result.
        bias: Added to it, if given: of any shape that broadcasts to the result's.
        residual: Likewise.
        activation: What comes last.
        product: Sizes of the product.

    Returns:
        The epilogue of the kernel, and a function that records what is left.
    """
    addends = [x for x in (bias, residual) if x is not None]
    direct_bias: Operand | None = None
    direct_residual: Operand | None = None
    step = (0, 0)
    rest: list[Operand] = []
    for x in addends:
        if x.size == product.columns and (x.ndim == 0 or x.shape[-1] == x.size) and not direct_bias:
            direct_bias, step = x, (0, 1)
        elif x.size == 1 and direct_bias is None:
            direct_bias = x
        elif x.size == out.size and direct_residual is None:
            direct_residual = x
        else:
            rest.append(x)
    if not rest:
        epilogue = Epilogue(direct_bias, step, 1, direct_residual, activation)
        return epilogue, lambda result: result

    def add_rest(result: Operand) -> Operand:
        for x in rest:
            result = apply(k, "{0} + {1}", result.dtype, result, x)
        return activate(k, result, activation)

    return Epilogue(direct_bias, step, 1, direct_residual), add_rest


def activate(k: Kit, x: Operand, activation: Activation) -> Operand:
    """An activation as an element-wise step."""
    if activation.code == 0:
        return x
    template = f"activate({{0}}, {int(activation.code)}, {{a}}, {{b}})"
    return apply(k, template, x.dtype, x, parameters=(activation.alpha, activation.beta))


def _batched(k: Kit, a: Operand, b: Operand) -> tuple[tuple[int, ...], Operand, Operand, Product]:
    """The result's shape, the operands, and which matrix of each belongs to which batch."""
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    a_batch, b_batch = a.shape[:-2], b.shape[:-2]
    try:
        batch = broadcast(a_batch, b_batch)
    except ValueError as error:
        raise OperandError(
            f"Operation '{k.builder.node.name}' (MatMul) cannot broadcast the batches of shapes "
            f"{list(a.shape)} and {list(b.shape)}."
        ) from error
    shape = (*batch, rows, columns)
    count = math.prod(batch)
    if math.prod(b_batch) == 1:
        # One right matrix for all: the left ones stacked are one matrix.
        return shape, a, b, Product(rows * math.prod(a_batch), columns, depth)
    a_map, b_map = _batch_map(batch, a_batch), _batch_map(batch, b_batch)
    if a_map is None:
        a, a_map = expand(k, a, (*batch, rows, depth)), (1, count)
    if b_map is None:
        b, b_map = expand(k, b, (*batch, depth, columns)), (1, count)
    return shape, a, b, Product(rows, columns, depth, count, (*a_map, *b_map))


def _batch_map(batch: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, int] | None:
    """Divisor and modulus that lead from a batch to the operand's matrix, if there are such.

    They exist where the dimensions that repeat are all before or all after those that do not.
    """
    dims = (1,) * (len(batch) - len(own)) + own
    kept = [i for i, (size, full) in enumerate(zip(dims, batch, strict=True)) if size == full > 1]
    if not kept:
        return 1, 1
    first, last = kept[0], kept[-1]
    if any(dims[i] != batch[i] for i in range(first, last + 1)):
        return None
    return max(1, math.prod(batch[last + 1 :])), math.prod(dims[first : last + 1])


def _gemm_bias(node: Node) -> Reason | None:
    if node.version < 7 and len(node.inputs) > 2 and not node.attrs.get("broadcast", 0):
        bias = node.inputs[2]
        if bias is not None and bias.shape is not None and len(bias.shape) != 2:
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "opset 6 without 'broadcast'")
    return None


@operator("Gemm", types=FLOATS, check=_gemm_bias)
def gemm(k: Kit, node: Node, a: Operand, b: Operand, c: Operand | None = None) -> Operand:
    """Product of two matrices, either one transposed, plus a third tensor."""
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if node.attrs.get("transA", 0):
        a = _transposed(k, a)
    if node.attrs.get("transB", 0):
        b = _transposed(k, b)
    if a.shape[1] != b.shape[0]:
        raise OperandError(
            f"Operation '{node.name}' (Gemm) cannot multiply shapes {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    product = Product(a.shape[0], b.shape[1], a.shape[1])
    out = k.empty((product.rows, product.columns), a.dtype)
    if beta == 0.0:
        c = None
    if alpha != 1.0:
        multiply(k, product, a, b, out, Epilogue())
        scaled = apply(k, "{0} * {a}", a.dtype, out, parameters=(alpha,))
        if c is None:
            return scaled
        return apply(k, "{0} + {a} * {1}", a.dtype, scaled, c, parameters=(beta,))
    if c is not None and beta != 1.0:
        c = apply(k, "{0} * {a}", c.dtype, c, parameters=(beta,))
    epilogue, late = _epilogue(k, out, c, None, NO_ACTIVATION, product)
    multiply(k, product, a, b, out, epilogue)
    return late(out)


@operator("FusedMatMul", "TransposeMatMul", domain="com.microsoft", types=FLOATS)
def scaled_matmul(k: Kit, node: Node, a: Operand, b: Operand) -> Operand:
    """A MatMul that swaps dimensions of its inputs and scales the result."""
    attrs = node.attrs
    a = _turned(k, a, attrs.get("transBatchA", 0), attrs.get("transA", 0))
    b = _turned(k, b, attrs.get("transBatchB", 0), attrs.get("transB", 0))
    y = _matmul(k, node, a, b, None, None)
    alpha = node.number("alpha", 1.0)
    return y if alpha == 1.0 else apply(k, "{0} * {a}", y.dtype, y, parameters=(alpha,))


def _turned(k: Kit, x: Operand, batch: int, last: int) -> Operand:
    """The first dimension behind all but the last one, then the last two swapped, as asked for."""
    if batch and x.ndim > 2:
        x = transpose(k, x, (*range(1, x.ndim - 1), 0, x.ndim - 1))
    if last and x.ndim > 1:
        x = transpose(k, x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))
    return x


def _transposed(k: Kit, x: Operand) -> Operand:
    if x.const is not None:
        return k.builder.prepack(x, "transposed", _transpose_array)
    return transpose(k, x, (1, 0))


def _transpose_array(array: Array) -> Array:
    return np.ascontiguousarray(array.T)
