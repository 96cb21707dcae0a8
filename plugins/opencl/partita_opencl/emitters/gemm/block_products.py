"""MatMulNBits: products with constant weights of a few bits in blocks that share a scale."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import NO_ACTIVATION, Node, Operand
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita_opencl.emitters.elementwise import broadcast, convert
from partita_opencl.emitters.gemm import block_tiles
from partita_opencl.emitters.gemm.block_tiles import FewRows, Placed
from partita_opencl.emitters.gemm.block_weights import BlockForm, BlockWeights, unpacked
from partita_opencl.emitters.gemm.joined_weights import (
    joined,
    joined_blocks,
    joined_halves,
    require_sizes,
    stream_of,
    weights_of,
)
from partita_opencl.emitters.gemm.matrix_units import stream_product
from partita_opencl.emitters.gemm.products import Epilogue, Product, activation_of, multiply
from partita_opencl.emitters.gemm.stream import (
    MOST_ROWS,
    StreamOperands,
    packed_bias,
)
from partita_opencl.emitters.gemm.tiled_weights import TILE
from partita_opencl.emitters.normalization import rms_rows, single
from partita_opencl.emitters.operator_table import FLOATS, DTypes, operator
from partita_opencl.launches.emitter_kit import Argument, Kit, f32, i32, i64, ints, is_half
from partita_opencl.launches.tensor_moves import expand
from partita_opencl.passes.nhwc import UNIT

_FEW_ROWS = 4
"""Products of at most so many rows read the weights as they are; others unpack them first."""

_SOME_ROWS = (8, 16, 32)
"""Rows that a kernel for weights in tiles computes at most; products of more unpack these, too."""

_WARPS = 8
"""Warps of a group of that kernel."""

_ITEMS = 256
"""Items of a group."""

_LANE_COLUMNS = 4
"""Columns of an item that works in registers."""

_STAGED = 4096
"""Elements of all rows that are in local memory at a time."""

_LARGE = 2**31 - 1


def _check(node: Node) -> Reason | None:
    bits, block = node.attrs.get("bits", 4), node.attrs.get("block_size", 0)
    detail = ""
    if bits not in (4, 8):
        detail = f"bits {bits}; takes 4 and 8, and 2 of constants"
    elif block < 16 or block > _LARGE or block & (block - 1):
        detail = f"block_size {block}; takes powers of two from 16"
    elif node.attrs.get("weight_prepacked", 0):
        detail = "weight_prepacked; takes weights as they are"
    elif not all(0 < node.attrs.get(name, 0) <= _LARGE - block for name in "NK"):
        detail = f"K {node.attrs.get('K')} and N {node.attrs.get('N')}"
    elif node.input(4) is not None:
        detail = "an order of blocks (g_idx)"
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, detail) if detail else None


_BYTES: DTypes = frozenset({np.dtype(np.uint8)})
_TYPES = {0: FLOATS, 1: _BYTES, 2: FLOATS, 3: _BYTES | FLOATS, 5: FLOATS}


@operator("MatMulNBits", domain="com.microsoft", types=_TYPES, values=(1, 2, 3), check=_check)
def matmul_nbits(
    k: Kit,
    node: Node,
    a: Operand,
    data: Operand,
    scales: Operand,
    zeros: Operand | None = None,
    order: Operand | None = None,
    bias: Operand | None = None,
) -> Operand:
    """Rows times the transpose of weights that are written column by column."""
    form = BlockForm.of(node)
    require_sizes(node, form, a, data, scales, zeros, bias)
    weights = weights_of(k, node, a, form, ([data], [scales], [zeros]))
    out = k.empty((*a.shape[:-1], form.columns), a.dtype)
    bias = None if bias is None else convert(k, bias, a.dtype)
    epilogue = Epilogue(bias, (0, 1), 1, None, activation_of(node))
    block_product(k, weights, a, out, epilogue)
    return out


class RowNorm(NamedTuple):
    """What rows go through before they are multiplied: root-mean-square normalization.

    Attributes:
        factors: A constant per element.
        epsilon: Added to the mean square.
    """

    factors: Operand
    epsilon: float


@operator("BlockProducts", domain="partita", types={0: FLOATS, 1: FLOATS})
def block_products(
    k: Kit,
    node: Node,
    x: Operand,
    residual: Operand | None,
    factors: Operand | None,
    *weights: Operand | None,
) -> Operand:
    """Products that read the same rows, side by side; see ``passes/decoder_fusion.py``.

    Of each, data, scales, zeros and bias are given; attribute ``N`` has their columns. With
    ``gated``, the activation of the first is multiplied by the second.
    """
    gated, by_input = bool(node.attrs["gated"]), [weights[at::4] for at in range(4)]
    halves = int(node.attrs["bits"]) == 16
    blocks = (joined_halves if halves else joined_blocks)(k, node, x, by_input, gated=gated)
    form, bias = blocks.form, joined(k, node, "bias", by_input[3], gated=gated)
    out = k.empty((*x.shape[:-1], form.columns // (2 if gated else 1)), x.dtype)
    bias = None if bias is None else convert(k, bias, x.dtype)
    if residual is not None:
        residual = convert(k, expand(k, residual, broadcast(k, residual, out)), x.dtype)
    epilogue = Epilogue(bias, (0, 1), 1, residual, activation_of(node))
    norm = None if factors is None else RowNorm(factors, node.number("epsilon", 0.0))
    block_product(k, blocks, x, out, epilogue, norm, gated=gated)
    return out


def block_product(
    k: Kit,
    weights: BlockWeights,
    a: Operand,
    out: Operand,
    epilogue: Epilogue,
    norm: RowNorm | None = None,
    *,
    gated: bool = False,
) -> None:
    """Records ``out = epilogue(norm(a) @ weights)``.

    Args:
        k: Records it.
        weights: The weights, of ``form.depth`` terms and ``form.columns`` columns.
        a: Rows (..., depth); nothing is recorded if there are none.
        out: Receives (..., columns), or half as many if gated.
        epilogue: Bias, residual and activation.
        norm: What rows go through first.
        gated: Whether columns are pairs, of which the activation of the first is multiplied by
            the second.
    """
    rows = a.size // weights.form.depth
    if not rows:
        return
    if rows <= _FEW_ROWS and k.tuning.local_tiles:
        factors = None if norm is None else single(k, norm.factors)
        if factors is not None and weights.tiled:
            factors = k.builder.prepack(factors, "shares of factors", block_tiles.shares_of_factors)
        epsilon = 0.0 if norm is None else norm.epsilon
        _multiply_few(k, FewRows(weights, rows, epilogue, factors, epsilon, gated), a, out)
        return
    if norm is not None:
        a = rms_rows(k, a, norm.factors, norm.epsilon)
    if rows <= _FEW_ROWS:
        _multiply_in_lanes(k, FewRows(weights, rows, epilogue, None, 0.0, gated), a, out)
        return
    if weights.tiled and rows <= _SOME_ROWS[-1]:
        _multiply_some(k, FewRows(weights, rows, epilogue, None, 0.0, gated), a, out)
        return
    if not gated:
        _multiply_many(k, weights, a, out, epilogue)
        return
    pairs = k.empty((*a.shape[:-1], weights.form.columns), a.dtype)
    plain = replace(epilogue, activation=NO_ACTIVATION)
    _multiply_many(k, weights, a, pairs, plain)
    activation = epilogue.activation
    k.launch(
        "gate.cl",
        "gate",
        k.tuning.flat(out.size),
        pairs,
        out,
        i64(out.size),
        f32(activation.alpha),
        f32(activation.beta),
        ACTIVATION=int(activation.code),
    )


def _multiply_many(
    k: Kit, weights: BlockWeights, a: Operand, out: Operand, epilogue: Epilogue
) -> None:
    """Records a product whose weights are unpacked for it."""
    form, rows = weights.form, a.size // weights.form.depth
    if not _streams(k, form, a, rows, epilogue):
        if form.bits == 16:
            raise CompileError(f"Operation '{k.builder.node.name}' has {rows} rows, too many.")
        w = unpacked(k, weights, a, columns_first=False)
        multiply(k, Product(rows, form.columns, form.depth), a, w, out, epilogue)
        return
    stream = stream_of(form, rows)
    bias = packed_bias(k, stream, weights.scales, epilogue.bias)
    w = weights.words if form.bits == 16 else unpacked(k, weights, a, columns_first=True)
    biased = epilogue.bias is not None
    operands = StreamOperands(a, w, bias, epilogue.residual, out, biased)
    stream_product(k, stream, operands, epilogue.activation)


def _streams(k: Kit, form: BlockForm, a: Operand, rows: int, epilogue: Epilogue) -> bool:
    """Whether unpacked weights stream through matrix units."""
    constant = epilogue.bias is None or epilogue.bias.const is not None
    usable = k.tuning.matrix_units and is_half(a.dtype) and rows <= MOST_ROWS
    return usable and constant and form.depth % UNIT == form.columns % UNIT == 0


class Cut(NamedTuple):
    """How a product of few rows is cut: items along units, items along columns, columns of each."""

    lanes: int
    high: int
    columns: int


def cut_of(k: Kit, form: BlockForm) -> Cut:
    """The most columns of an item, and the fewest lanes, with which all compute units have work."""
    most = 1 << (min(_ITEMS // 2, form.units) - 1).bit_length()
    cuts = [
        Cut(lanes, _ITEMS // lanes, columns)
        for columns in (4, 2)
        for lanes in (16, 32, 64, 128)
        if lanes <= max(16, most)
    ]
    enough = 2 * k.tuning.limits.compute_units
    for cut in cuts:
        if k.tuning.fits(cut.lanes, cut.high) and groups_of(form, cut) >= enough:
            return cut
    return cuts[-1] if k.tuning.fits(cuts[-1].lanes, cuts[-1].high) else Cut(16, 8, 4)


def groups_of(form: BlockForm, cut: Cut) -> int:
    """Groups that compute all columns."""
    return math.ceil(form.columns / (cut.high * cut.columns))


def tile_of(form: BlockForm, cut: Cut, rows: int) -> int:
    """Units of a column for which all rows are in local memory at a time."""
    staged = _STAGED // (rows * form.elements * cut.lanes)
    return min(max(1, staged), math.ceil(form.units / cut.lanes)) * cut.lanes


def _multiply_few(k: Kit, product: FewRows, a: Operand, out: Operand) -> None:
    """Records a product that reads the weights as they are."""
    weights, rows, epilogue, factors, epsilon, gated = product
    form, cut = weights.form, cut_of(k, weights.form)
    flags = {"GATED": gated, "NORM": factors is not None}
    if weights.tiled:
        launch = block_tiles.launch_of([Placed(product, a, out)], k.tuning)
        k.launch_generated(
            "",
            block_tiles.FILE,
            block_tiles.KERNEL,
            launch.sizes,
            *launch.args,
            product=product,
            **launch.options,
        )
        return
    more: tuple[Argument, ...] = () if factors is None else (factors, f32(epsilon))
    k.launch_generated(
        "",
        "block_product.cl",
        "block_product",
        ((groups_of(form, cut) * cut.lanes, cut.high), (cut.lanes, cut.high)),
        a,
        *weights.buffers(),
        *epilogue.buffers(a),
        out,
        i32(rows),
        *weights.sizes(),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        *more,
        product=product,
        LX=cut.lanes,
        LY=cut.high,
        ROWS=rows,
        COLUMNS=cut.columns,
        TILE=tile_of(form, cut, rows),
        **weights.options(),
        **epilogue.options(),
        **{name: None for name, on in flags.items() if on},
    )


def _multiply_some(k: Kit, product: FewRows, a: Operand, out: Operand) -> None:
    """Records a product with weights in tiles, which matrix units multiply as they are."""
    weights, epilogue, rows = product.weights, product.epilogue, product.rows
    part = settled(evaluated(_rows_of_a_group, rows))
    groups = math.ceil(weights.form.columns / TILE)
    k.launch(
        "block_rows.cl",
        "block_rows",
        k.tuning.groups(groups, _WARPS * 32),
        a,
        weights.words,
        *epilogue.buffers(a),
        out,
        i32(rows),
        i32(weights.form.columns),
        i32(weights.form.depth),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        ROWS=part,
        WARPS=_WARPS,
        **weights.options(),
        **epilogue.options(),
        **({"GATED": None} if product.gated else {}),
    )


def _rows_of_a_group(rows: int) -> int:
    """The least that has all rows."""
    return next(part for part in _SOME_ROWS if part >= rows)


def _multiply_in_lanes(k: Kit, product: FewRows, a: Operand, out: Operand) -> None:
    """Records a product that reads the weights as they are, by items that share nothing."""
    weights, epilogue, form = product.weights, product.epilogue, product.weights.form
    k.launch(
        "block_lanes.cl",
        "block_lanes",
        ((math.ceil(form.columns / _LANE_COLUMNS),), (1,)),
        a,
        *weights.buffers(),
        *epilogue.buffers(a),
        out,
        i32(product.rows),
        *weights.sizes(),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        ROWS=product.rows,
        COLUMNS=_LANE_COLUMNS,
        **weights.options(),
        **epilogue.options(),
        **({"GATED": None} if product.gated else {}),
    )
