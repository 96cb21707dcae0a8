"""Matrix products: one launcher for MatMul, Gemm and convolutions, tiled by the device's tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from partita.errors import CompileError
from partita.lowering import NO_ACTIVATION, Activation, Array, Node, Operand
from partita.query import Reason, ReasonCode
from partita_opencl.emitters.elementwise import apply
from partita_opencl.emitters.movement import expand, transpose
from partita_opencl.kit import Argument, Kit, f32, i32, ints
from partita_opencl.table import F32, operator

TILE = {"BM": 64, "BN": 64, "BK": 16, "TM": 8, "TN": 4}
"""Rows, columns and depth of a tile in local memory, and the part of one item."""

_VECTOR_ROWS = 4
"""Products of at most so many rows stream the second matrix once."""

_LANES = 16
"""Columns of an item that works in registers."""


_MOST_BATCHES = 65535
"""Batches of one launch in the third dimension; items step over the rest."""


@dataclass(frozen=True)
class Epilogue:
    """What is done to each sum before it is stored.

    Attributes:
        bias: Added, or ``None``.
        bias_step: Step of the bias per row and per column.
        bias_mod: Bias vectors; batch z uses vector ``z % bias_mod``.
        residual: Added element by element, or ``None``.
        activation: Applied last.
    """

    bias: Operand | None = None
    bias_step: tuple[int, int] = (0, 0)
    bias_mod: int = 1
    residual: Operand | None = None
    activation: Activation = NO_ACTIVATION

    def buffers(self, unused: Operand) -> tuple[Operand, Operand]:
        """Bias and residual, or another buffer in their place, which the kernel leaves alone."""
        return self.bias or unused, self.residual or unused

    def flags(self) -> tuple[Argument, ...]:
        """The kernels' ``has_bias, has_residual, activation, alpha, beta``."""
        return (
            i32(self.bias is not None),
            i32(self.residual is not None),
            i32(self.activation.code),
            f32(self.activation.alpha),
            f32(self.activation.beta),
        )


@dataclass(frozen=True)
class Product:
    """``batches`` products of (rows, depth) by (depth, columns).

    Attributes:
        rows: Rows of the result.
        columns: Columns of the result.
        depth: Length of the sums.
        batches: How many.
        batch_map: Matrix ``z // div % mod`` belongs to batch z: div and mod of a, then of b.
    """

    rows: int
    columns: int
    depth: int
    batches: int = 1
    batch_map: tuple[int, int, int, int] = (1, 1, 1, 1)

    def sizes(self) -> tuple[Argument, ...]:
        """The kernels' ``rows, columns, depth``."""
        return i32(self.rows), i32(self.columns), i32(self.depth)


def multiply(
    k: Kit, product: Product, a: Operand, b: Operand, out: Operand, epilogue: Epilogue
) -> None:
    """Records ``out = epilogue(a @ b)`` for matrices in row-major order."""
    if not out.size:
        return
    if product.depth == 0:
        empty_sums(k, product, out, epilogue)
    elif product.rows <= _VECTOR_ROWS and product.batches == 1 and k.tuning.local_tiles:
        _multiply_vectors(k, product, a, b, out, epilogue)
    elif k.tuning.local_tiles:
        tiles(k, product, a, b, out, epilogue)
    else:
        lanes(k, product, a, b, out, epilogue)


def tiles(
    k: Kit,
    product: Product,
    a: Operand,
    b: Operand,
    out: Operand,
    epilogue: Epilogue,
    extra: Sequence[Argument] = (),
    **options: None,
) -> None:
    """Records a product by tiles in local memory; long sums of few tiles are split."""
    groups = (
        product.batches
        * math.ceil(product.rows / TILE["BM"])
        * math.ceil(product.columns / TILE["BN"])
    )
    splits, per_split = split_depth(k, groups, product.depth, TILE["BK"])
    split: dict[str, None] = {}
    target = out
    if splits > 1:
        split = {"SPLIT": None}
        target = k.empty((splits, out.size), out.dtype)
    k.launch(
        "product_tile.cl",
        "product_tile",
        k.tuning.groups(groups * splits, TILE["BM"] // TILE["TM"] * (TILE["BN"] // TILE["TN"])),
        a,
        b,
        *epilogue.buffers(a),
        target,
        *product.sizes(),
        i32(product.batches),
        ints(*product.batch_map),
        i32(epilogue.bias_mod),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        i32(per_split),
        *extra,
        **TILE,
        **options,
        **split,
    )
    if splits > 1:
        add_splits(k, product, target, splits, out, epilogue)


def lanes(
    k: Kit,
    product: Product,
    a: Operand,
    b: Operand,
    out: Operand,
    epilogue: Epilogue,
    extra: Sequence[Argument] = (),
    **options: None,
) -> None:
    """Records a product whose items keep rows of sixteen sums in registers."""
    rows = 1 if product.rows == 1 else 8
    global_size = (
        math.ceil(product.rows / rows),
        math.ceil(product.columns / _LANES),
        min(product.batches, _MOST_BATCHES),
    )
    k.launch(
        "product_lanes.cl",
        "product_lanes",
        (global_size, (1, 1, 1)),
        a,
        b,
        *epilogue.buffers(a),
        out,
        *product.sizes(),
        i32(product.batches),
        ints(*product.batch_map),
        i32(epilogue.bias_mod),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        *extra,
        ROWS=rows,
        **options,
    )


def _multiply_vectors(
    k: Kit, product: Product, a: Operand, b: Operand, out: Operand, epilogue: Epilogue
) -> None:
    wide, high = 32, 4
    groups = math.ceil(product.columns / wide)
    splits, per_split = split_depth(k, groups, product.depth, high)
    rows = 1 if product.rows == 1 else _VECTOR_ROWS
    split: dict[str, None] = {}
    target = out
    if splits > 1:
        split = {"SPLIT": None}
        target = k.empty((splits, out.size), out.dtype)
    k.launch(
        "product_vector.cl",
        "product_vector",
        ((groups * wide, splits * high, math.ceil(product.rows / rows)), (wide, high, 1)),
        a,
        b,
        *epilogue.buffers(a),
        target,
        *product.sizes(),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        i32(per_split),
        LX=wide,
        LY=high,
        ROWS=rows,
        **split,
    )
    if splits > 1:
        add_splits(k, product, target, splits, out, epilogue)


def split_depth(k: Kit, groups: int, depth: int, step: int) -> tuple[int, int]:
    """In how many parts to cut sums so that all compute units have work, and the parts' length."""
    wanted = 2 * k.tuning.limits.compute_units // max(1, groups)
    splits = max(1, min(wanted, depth // (8 * step), 32))
    per_split = math.ceil(math.ceil(depth / splits) / step) * step
    return math.ceil(depth / per_split), per_split


def add_splits(
    k: Kit, product: Product, partial: Operand, splits: int, out: Operand, epilogue: Epilogue
) -> None:
    """Records the sum of the parts and the epilogue."""
    k.launch(
        "product_sum.cl",
        "product_sum",
        k.tuning.flat(out.size),
        partial,
        *epilogue.buffers(partial),
        out,
        i32(product.rows),
        i32(product.columns),
        i32(product.batches),
        i32(splits),
        i32(epilogue.bias_mod),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
    )


def empty_sums(k: Kit, product: Product, out: Operand, epilogue: Epilogue) -> None:
    """Records what remains of a product whose sums have no terms: the epilogue."""
    add_splits(k, product, out, 0, out, epilogue)


def activation_of(node: Node) -> Activation:
    """What fusion hung on the node."""
    found = node.attrs.get("activation")
    return found if isinstance(found, Activation) else NO_ACTIVATION


@operator("MatMul")
def matmul(k: Kit, node: Node, a: Operand, b: Operand) -> Operand:
    """Product of matrices, with numpy's rules for vectors and batches."""
    return _matmul(k, node, a, b, None, None)


@operator("MatMul", domain="partita")
def matmul_fused(
    k: Kit,
    node: Node,
    a: Operand,
    b: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """The product with bias, residual and activation."""
    return _matmul(k, node, a, b, bias, residual)


def _matmul(
    k: Kit, node: Node, a: Operand, b: Operand, bias: Operand | None, residual: Operand | None
) -> Operand:
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[max(0, b.ndim - 2)]:
        raise CompileError(
            f"Operation '{node.name}' ({node.kind}) cannot multiply shapes {list(a.shape)} and "
            f"{list(b.shape)}."
        )
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


def _epilogue(
    k: Kit,
    out: Operand,
    bias: Operand | None,
    residual: Operand | None,
    activation: Activation,
    product: Product,
) -> tuple[Epilogue, Callable[[Operand], Operand]]:
    """What the product's kernel can add itself, and what has to follow as a step of its own."""
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
        batch = np.broadcast_shapes(a_batch, b_batch)
    except ValueError as error:
        raise CompileError(
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


@operator("Gemm", types=F32, check=_gemm_bias)
def gemm(k: Kit, node: Node, a: Operand, b: Operand, c: Operand | None = None) -> Operand:
    """Product of two matrices, either one transposed, plus a third tensor."""
    alpha, beta = float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))
    if node.attrs.get("transA", 0):
        a = _transposed(k, a)
    if node.attrs.get("transB", 0):
        b = _transposed(k, b)
    if a.shape[1] != b.shape[0]:
        raise CompileError(
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


def _transposed(k: Kit, x: Operand) -> Operand:
    if x.const is not None:
        return k.builder.prepack(x, "transposed", _transpose_array)
    return transpose(k, x, (1, 0))


def _transpose_array(array: Array) -> Array:
    return np.ascontiguousarray(array.T)
