"""MatMulNBits: products with constant weights of a few bits in blocks that share a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import NO_ACTIVATION, Array, Node, Operand
from partita_opencl.emitters.elementwise import broadcast, convert
from partita_opencl.emitters.gemm.block_weights import BlockForm, BlockWeights, unpacked
from partita_opencl.emitters.gemm.matrix_units import (
    MOST_ROWS,
    Stream,
    packed_bias,
    packed_filters,
    stream_product,
)
from partita_opencl.emitters.gemm.products import Epilogue, Product, activation_of, multiply
from partita_opencl.emitters.movement import expand
from partita_opencl.emitters.normalization import rms_rows, single
from partita_opencl.emitters.operator_table import FLOATS, DTypes, operator
from partita_opencl.launches.emitter_kit import Argument, Kit, f32, i32, i64, ints, is_half
from partita_opencl.passes.nhwc import UNIT

_FEW_ROWS = 4
"""Products of at most so many rows read the weights as they are; others unpack them first."""

_ITEMS = 256
"""Items of a group."""

_LANE_COLUMNS = 4
"""Columns of an item that works in registers."""

_STAGED = 4096
"""Elements of all rows that are in local memory at a time."""

_LARGE = 2**31 - 1


class FewRows(NamedTuple):
    """What a launch of ``block_product.cl`` computes, for those who put several of them in one.

    Attributes:
        weights: Its weights.
        rows: Rows of both sides.
        epilogue: What becomes of the sums; the bias is of columns.
        factors: A constant row of float32 that normalized rows are multiplied by, or ``None``.
        epsilon: Added to the mean square.
        gated: Whether the activation of one column is multiplied by the next.
    """

    weights: BlockWeights
    rows: int
    epilogue: Epilogue
    factors: Operand | None
    epsilon: float
    gated: bool


def _check(node: Node) -> Reason | None:
    bits, block = node.attrs.get("bits", 4), node.attrs.get("block_size", 0)
    detail = ""
    if bits not in (4, 8):
        detail = f"bits {bits}; takes 4 and 8"
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
    _require_sizes(node, form, a, data, scales, zeros, bias)
    weights = BlockWeights.pack(k, form, data, scales, zeros)
    out = k.empty((*a.shape[:-1], form.columns), a.dtype)
    bias = None if bias is None else convert(k, bias, a.dtype)
    epilogue = Epilogue(bias, (0, 1), 1, None, activation_of(node))
    block_product(k, weights, a, out, epilogue)
    return out


def _require_sizes(
    node: Node,
    form: BlockForm,
    a: Operand,
    data: Operand,
    scales: Operand,
    zeros: Operand | None,
    bias: Operand | None,
) -> None:
    """Raises if tensors are not as large as the attributes say."""
    count = form.columns * form.blocks
    bytes_of_zeros = form.columns * math.ceil(form.blocks * form.bits / 8)
    wrong = ""
    if not a.shape or a.shape[-1] != form.depth:
        wrong = f"input of shape {list(a.shape)} for K {form.depth}"
    elif data.nbytes != form.columns * form.column_bytes:
        wrong = f"weights of shape {list(data.shape)} and type {data.dtype}"
    elif scales.size != count:
        wrong = f"{scales.size} scales for {count} blocks"
    elif zeros is not None and zeros.size != (bytes_of_zeros if zeros.dtype.kind == "u" else count):
        wrong = f"{zeros.size} zero points of type {zeros.dtype} for {count} blocks"
    elif bias is not None and bias.size != form.columns:
        wrong = f"a bias of {bias.size} elements for N {form.columns}"
    if wrong:
        raise CompileError(f"Operation '{node.name}' ({node.kind}) has {wrong}.")


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
    blocks = (_joined_halves if halves else _joined_blocks)(k, node, x, by_input, gated)
    form, bias = blocks.form, _joined(k, node, "bias", by_input[3], gated=gated)
    out = k.empty((*x.shape[:-1], form.columns // (2 if gated else 1)), x.dtype)
    bias = None if bias is None else convert(k, bias, x.dtype)
    if residual is not None:
        residual = convert(k, expand(k, residual, broadcast(k, residual, out)), x.dtype)
    epilogue = Epilogue(bias, (0, 1), 1, residual, activation_of(node))
    norm = None if factors is None else RowNorm(factors, node.number("epsilon", 0.0))
    block_product(k, blocks, x, out, epilogue, norm, gated=gated)
    return out


def _joined_blocks(
    k: Kit, node: Node, x: Operand, by_input: Sequence[Sequence[Operand | None]], gated: bool
) -> BlockWeights:
    """The weights of products in blocks as those of one."""
    columns = node.attrs["N"]
    for count, data, scales, zeros, bias in zip(columns, *by_input, strict=True):
        if data is None or scales is None:
            raise TypeError("products of blocks have weights and scales")
        part = BlockForm.of(node.like(attrs={"N": count}))
        _require_sizes(node, part, x, data, scales, zeros, bias)
    names = ("data", "scales", "zeros")
    data, scales, zeros = (
        _joined(k, node, name, parts, gated=gated)
        for name, parts in zip(names, by_input, strict=False)
    )
    if data is None or scales is None:
        raise TypeError("products of blocks have weights and scales")
    form = BlockForm.of(node.like(attrs={"N": sum(columns)}))
    return BlockWeights.pack(k, form, data, scales, zeros)


def _joined_halves(
    k: Kit, node: Node, x: Operand, by_input: Sequence[Sequence[Operand | None]], gated: bool
) -> BlockWeights:
    """Weights (depth, columns) of products as those of one, as matrix units take them."""
    form = BlockForm.of_halves(sum(node.attrs["N"]), int(node.attrs["K"]))
    matrices = [matrix for matrix in by_input[0] if matrix is not None]
    if x.shape[-1:] != (form.depth,):
        raise CompileError(
            f"Operation '{node.name}' ({node.kind}) has an input of shape {list(x.shape)} for "
            f"weights of {form.depth} rows."
        )
    stream = _stream(form, 1)

    def pack(array: Array) -> Array:
        arrays = [array, *(k.value(other) for other in matrices[1:])]
        together = np.stack(arrays, 2) if gated else np.concatenate(arrays, 1)
        return packed_filters(k, stream, together.reshape(form.depth, form.columns).T)

    words = k.builder.prepack(matrices[0], ("halves", node.name), pack)
    return BlockWeights(form, words, words, None)


def _stream(form: BlockForm, rows: int) -> Stream:
    """A product as matrix units take it."""
    return Stream(
        images=1,
        image=(rows, 1),
        pitch=form.depth,
        channels=form.depth,
        filters=form.columns,
        out=(rows, 1),
    )


def _joined(
    k: Kit, node: Node, name: str, parts: Sequence[Operand | None], *, gated: bool
) -> Operand | None:
    """Constants of products one behind another; those of two that are gated take turns."""
    given = [part for part in parts if part is not None]
    if len(given) < 2:
        return given[0] if given else None
    columns, others = node.attrs["N"], given[1:]

    def join(array: Array) -> Array:
        arrays = [array, *(k.value(other) for other in others)]
        rows = [a.reshape(count, -1) for a, count in zip(arrays, columns, strict=True)]
        together: Array = np.stack(rows, 1) if gated else np.concatenate(rows)
        return together.reshape(-1)

    return k.builder.prepack(given[0], ("joined", name, node.name), join)


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
    """Records ``out = epilogue(norm(a) @ weights)``; see :func:`block_products` for ``gated``."""
    rows = a.size // weights.form.depth
    if not rows:
        return
    if rows <= _FEW_ROWS and k.tuning.local_tiles:
        _multiply_few(k, weights, a, out, epilogue, norm, gated=gated)
        return
    if norm is not None:
        a = rms_rows(k, a, norm.factors, norm.epsilon)
    if rows <= _FEW_ROWS:
        _multiply_in_lanes(k, weights, a, out, epilogue, gated=gated)
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
    stream = _stream(form, rows)
    bias = packed_bias(k, stream, weights.scales, epilogue.bias)
    w = weights.words if form.bits == 16 else unpacked(k, weights, a, columns_first=True)
    stream_product(k, stream, a, w, bias, epilogue.residual, out, epilogue.activation)


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


def _multiply_few(
    k: Kit,
    weights: BlockWeights,
    a: Operand,
    out: Operand,
    epilogue: Epilogue,
    norm: RowNorm | None,
    *,
    gated: bool,
) -> None:
    """Records a product that reads the weights as they are."""
    form, cut = weights.form, cut_of(k, weights.form)
    rows = a.size // form.depth
    flags = {"GATED": gated, "NORM": norm is not None}
    factors = None if norm is None else single(k, norm.factors)
    epsilon = 0.0 if norm is None else norm.epsilon
    more: tuple[Argument, ...] = () if factors is None else (factors, f32(epsilon))
    staged = _STAGED // (rows * form.elements * cut.lanes)
    tile = min(max(1, staged), math.ceil(form.units / cut.lanes)) * cut.lanes
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
        product=FewRows(weights, rows, epilogue, factors, epsilon, gated),
        LX=cut.lanes,
        LY=cut.high,
        ROWS=rows,
        COLUMNS=cut.columns,
        TILE=tile,
        **weights.options(),
        **epilogue.options(),
        **{name: None for name, on in flags.items() if on},
    )


def _multiply_in_lanes(
    k: Kit, weights: BlockWeights, a: Operand, out: Operand, epilogue: Epilogue, *, gated: bool
) -> None:
    """Records a product that reads the weights as they are, by items that share nothing."""
    form = weights.form
    k.launch(
        "block_lanes.cl",
        "block_lanes",
        ((math.ceil(form.columns / _LANE_COLUMNS),), (1,)),
        a,
        *weights.buffers(),
        *epilogue.buffers(a),
        out,
        i32(a.size // form.depth),
        *weights.sizes(),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        ROWS=a.size // form.depth,
        COLUMNS=_LANE_COLUMNS,
        **weights.options(),
        **epilogue.options(),
        **({"GATED": None} if gated else {}),
    )
