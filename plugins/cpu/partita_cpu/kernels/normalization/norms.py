"""Normalization over trailing axes, over planes of channels, and with given statistics."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita.lowering.shapes.symbolic_size import assumed
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.packed_lhs.packed_lhs_table import packed_lhs_size
from partita_cpu.gemm.packed_lhs.tiled_operands import note_only_tiles
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.gemm.tile_fields import STEP
from partita_cpu.gemm.tile_kernels import packed_lhs_kernels
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.kernels.elementwise.broadcast_loops import broadcast, emit_broadcast
from partita_cpu.kernels.elementwise.cast import emit_cast
from partita_cpu.kernels.half import FLOAT32, float32_of, narrow, through_float32
from partita_cpu.kernels.movement.rearrange import transposed
from partita_cpu.kernels.normalization.norm_loops import (
    GroupSizes,
    Normalized,
    RowSizes,
    Sums,
    TiledRows,
    fold_statistics,
    normalize_planes,
    normalize_rows,
    normalize_short_rows,
    normalize_short_sums,
    normalize_to_tiles,
    scale_channels,
)
from partita_cpu.kernels.normalization.shared_groups import emit_shared_groups
from partita_cpu.kernels.operator_table import ALL_FLOATS, F32, HALVES, kernel
from partita_cpu.kernels.quantized_weights.matmul_nbits import row_arithmetic
from partita_cpu.llvm.eight_rows import EIGHT, LONGEST
from partita_cpu.llvm.normalization import eights_name


def _eights_kernel(
    b: Builder,
    x: Operand,
    outer: int,
    n: int,
    centered: bool,
    added: bool,
    arithmetic: Arithmetic | None,
) -> int:
    """Address of a kernel for eight short rows, or sums, at a time, 0 where there is none.

    Args:
        b: The builder.
        x: Rows.
        outer: How many.
        n: Columns.
        centered: Whether the mean is taken off.
        added: Whether rows are sums of two.
        arithmetic: Of the tiles that results are laid out as; None if they are rows.
    """
    policy = native_policy(b.options)
    if x.dtype != FLOAT32 or policy is None or assumed(outer) < EIGHT or n > LONGEST:
        return 0
    part = "_normalized" if arithmetic is None else f"_normalized_tiles_{arithmetic.planes}"
    return addresses(policy.level, part).get(eights_name(centered, added), 0)


def _arithmetic_of_tiles(b: Builder, x: Operand, outer: int, n: int) -> Arithmetic | None:
    """What the products compute in that alone read a result; ``None`` if it is to lie as rows."""
    policy = native_policy(b.options)
    marked = b.node.attrs.get("tiles") and x.dtype == FLOAT32
    if policy is None or not marked or n % STEP or n > LONGEST:
        return None
    return row_arithmetic(policy, outer)


def _emit_tiles(
    b: Builder,
    y: Operand,
    arithmetic: Arithmetic,
    given: tuple[Sums, Operand, Operand, Normalized],
    rows: TiledRows,
    epsilon: float,
    over: tuple[Operand, Operand] | None,
) -> None:
    """Normalizes rows, or sums, so that results lie as tiles alone.

    Args:
        b: The builder.
        y: The result, which is there as tiles alone.
        arithmetic: Of the tiles.
        given: Rows or addends, factors, terms, and what is written.
        rows: Sizes.
        epsilon: Added to the variance.
        over: A result and an argument in whose memory it may be made.
    """
    sums, factors, terms, results = given
    tiles = b.empty((packed_lhs_size(rows.outer, rows.n, rows.planes),), np.uint16)
    note_only_tiles(b, y, arithmetic, tiles)
    few = b.empty((EIGHT * rows.n,), np.float32)
    kernels = b.constant(packed_lhs_kernels(b.options.level, arithmetic))
    written = results._replace(y=few)
    arguments = sums, factors, terms, written, tiles, kernels, rows, float(epsilon)
    b.call(normalize_to_tiles, *arguments, over=over)


_add, _multiply = broadcast(operator.add), broadcast(operator.mul)


def _emit_rows(
    b: Builder,
    x: Operand,
    scale: Operand,
    bias: Operand | None,
    axis: int,
    epsilon: float,
    centered: bool,
    parts: tuple[Operand, Operand] | None = None,
) -> tuple[Operand, Operand, Operand]:
    """Normalized rows, their means and their inverse deviations.

    Args:
        b: The builder.
        x: The tensor.
        scale: A factor for each column.
        bias: A term for each column.
        axis: The first axis of a row.
        epsilon: Added to the variance.
        centered: Whether the mean is taken off.
        parts: Two tensors whose sum rows are first made.
    """
    rows_shape, row_shape = x.shape[:axis], x.shape[axis:]
    outer, n = math.prod(rows_shape), math.prod(row_shape)
    y = b.empty(x.shape, x.dtype)
    kept = (*rows_shape, *[1] * len(row_shape))
    if y.size == 0:  # rows of no elements have no mean
        nothing = b.table(kept, x.dtype, np.full, kept, np.nan)
        return y, nothing, nothing
    means, inverses = b.empty(kept, x.dtype), b.empty(kept, x.dtype)
    fits = all(_is_row(operand, row_shape) for operand in (scale, bias) if operand is not None)
    factors = b.flat(scale) if fits else b.table((n,), x.dtype, np.ones, n)
    terms = b.flat(bias) if fits and bias is not None else b.zeros(n, x.dtype)
    given = factors, terms, Normalized(b.flat(y), b.flat(means), b.flat(inverses))
    added = parts is not None and parts[0].shape == parts[1].shape == x.shape
    arithmetic = _arithmetic_of_tiles(b, x, outer, n) if fits else None
    eights = _eights_kernel(b, x, outer, n, centered, added, arithmetic)
    sizes = RowSizes(outer, n, int(centered))
    if parts is not None and not (added and eights):
        emit_broadcast(b, _add, parts, x)
    read = parts if parts is not None and added and eights else (x, x)
    over = (x, read[0]) if read[0] is not x else None
    sums = Sums(b.flat(read[0]), b.flat(read[1]), b.flat(x))
    if arithmetic is not None:
        rows = TiledRows(*sizes, int(over is not None), arithmetic.planes, eights)
        _emit_tiles(b, y, arithmetic, (sums, *given), rows, epsilon, over)
    elif over is not None:
        b.call(normalize_short_sums, sums, *given, sizes, eights, float(epsilon), over=over)
    elif eights:
        # Of eight rows a vector is read for the last time right before its results are written.
        b.call(normalize_short_rows, sums.x, *given, sizes, eights, float(epsilon), over=(y, x))
    else:
        b.call(normalize_rows, sums.x, *given, outer, n, float(epsilon), int(centered))
    if not fits:
        for function, operand in ((_multiply, scale), (_add, bias)):
            if operand is not None:
                before, y = y, b.empty(x.shape, x.dtype)
                emit_broadcast(b, function, [before, operand], y)
    return y, means, inverses


def _is_row(operand: Operand, row_shape: Sequence[int]) -> bool:
    """Whether it has an element for each of a row, and not one for each of several rows."""
    own, lead = operand.shape, max(operand.ndim - len(row_shape), 0)
    missing = (1,) * (len(row_shape) - operand.ndim)
    return set(own[:lead]) <= {1} and missing + own[lead:] == tuple(row_shape)


def _with_statistics(
    b: Builder, node: Node, x: Operand, scale: Operand, bias: Operand | None, centered: bool
) -> tuple[Operand, Operand, Operand]:
    """As `_emit_rows`; 16-bit floats have float32 statistics.

    Args:
        b: The builder.
        node: The operation.
        x: The tensor.
        scale: A factor for each column.
        bias: A term for each column.
        centered: Whether the mean is taken off.
    """
    axis = axis_of(b.node, node.attrs.get("axis", -1), x.ndim)
    kind = x.dtype
    x, scale = float32_of(b, x), float32_of(b, scale)
    bias = None if bias is None else float32_of(b, bias)
    epsilon = node.number("epsilon", 1e-5)
    y, means, inverses = _emit_rows(b, x, scale, bias, axis, epsilon, centered)
    return narrow(b, y, kind) if kind in HALVES else y, means, inverses


@kernel("LayerNormalization", dtypes=ALL_FLOATS)
@kernel("LayerNormalization", domain="partita", dtypes=ALL_FLOATS)
def layer_normalization(
    b: Builder, node: Node, x: Operand, scale: Operand, bias: Operand | None = None
) -> tuple[Operand, Operand, Operand]:
    """LayerNormalization with its mean and inverse deviation, which are float32."""
    y, means, inverses = _with_statistics(b, node, x, scale, bias, True)
    return y, emit_cast(b, means, FLOAT32), emit_cast(b, inverses, FLOAT32)


@kernel("ChannelNormalization", domain="partita", dtypes=F32)
def channel_normalization(
    b: Builder, node: Node, x: Operand, scale: Operand, bias: Operand
) -> Operand:
    """LayerNormalization of axis 1, by rows: with channels last it needs no transpositions."""
    last = transposed(b, x, (0, *range(2, x.ndim), 1))
    rows = b.flat(scale), b.flat(bias), x.ndim - 1
    y, _, _ = _emit_rows(b, last, *rows, node.number("epsilon", 1e-5), True)
    return transposed(b, y, (0, x.ndim - 1, *range(1, x.ndim - 1)))


@kernel("RMSNormalization", "SimplifiedLayerNormalization", dtypes=ALL_FLOATS)
@kernel("SimplifiedLayerNormalization", domain="com.microsoft", dtypes=ALL_FLOATS)
def root_mean_square_normalization(
    b: Builder, node: Node, x: Operand, scale: Operand
) -> tuple[Operand, Operand]:
    """Division by the root of the mean square; the result has the type of the scale."""
    kind = scale.dtype
    if x.dtype != kind:
        wide = np.result_type(*(FLOAT32 if o.dtype in HALVES else o.dtype for o in (x, scale)))
        x, scale = emit_cast(b, x, wide), emit_cast(b, scale, wide)
    y, _, inverses = _with_statistics(b, node, x, scale, None, False)
    return emit_cast(b, y, kind), emit_cast(b, inverses, FLOAT32)


@kernel(
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    domain="com.microsoft",
    dtypes=ALL_FLOATS,
)
def skip_layer_normalization(
    b: Builder, node: Node, x: Operand, skip: Operand, scale: Operand, *others: Operand | None
) -> tuple[Operand, Operand, Operand, Operand]:
    """Normalization of a sum; the sum is the last output. Statistics are of float32."""
    kind = x.dtype
    x, skip, scale = (float32_of(b, o) for o in (x, skip, scale))
    centered = node.op_type == "SkipLayerNormalization"
    rest = [*(None if o is None else float32_of(b, o) for o in others), None, None]
    beta, bias = (rest[0], rest[1]) if centered else (None, rest[0])
    parts, total = (x, skip), b.empty(x.shape, x.dtype)
    if bias is not None:
        emit_broadcast(b, _add, parts, total)
        parts, total = (total, bias), b.empty(x.shape, x.dtype)
    epsilon = node.number("epsilon", 1e-12)
    given = scale, beta, x.ndim - 1, epsilon, centered
    y, means, inverses = _emit_rows(b, total, *given, parts)
    if kind in HALVES:
        y, total = narrow(b, y, kind), narrow(b, total, kind)
    return y, means, inverses, total


@kernel("InstanceNormalization", dtypes=ALL_FLOATS)
@through_float32
def instance_normalization(
    b: Builder, node: Node, x: Operand, scale: Operand, bias: Operand
) -> Operand:
    """Every channel of every sample for itself."""
    return _emit_planes(b, node, x, scale, bias, x.shape[1])


@kernel("GroupNormalization", dtypes=ALL_FLOATS)
@through_float32
def group_normalization(
    b: Builder, node: Node, x: Operand, scale: Operand, bias: Operand
) -> Operand:
    """Groups of channels; until opset 20 scale and bias are per group, then per channel."""
    groups = int(node.attrs["num_groups"])
    channels = x.shape[1]
    if node.version < 21:
        scale, bias = (_per_channel(b, operand, channels) for operand in (scale, bias))
    return _emit_planes(b, node, x, scale, bias, groups)


def _per_channel(b: Builder, x: Operand, channels: int) -> Operand:
    y = b.empty((channels,), x.dtype)
    if channels:
        b.call_numpy(_repeat, x, y)
    return y


def _repeat(x: Array, y: Array) -> None:
    y.reshape(x.size, -1)[...] = x.reshape(-1, 1)


def _emit_planes(
    b: Builder, node: Node, x: Operand, scale: Operand, bias: Operand, groups: int
) -> Operand:
    """Records a normalization of planes, over groups of channels.

    Args:
        b: The builder.
        node: The operation.
        x: The images (N, C, ...).
        scale: A factor for each channel.
        bias: A term for each channel.
        groups: Of channels.
    """
    y = b.empty(x.shape, x.dtype)
    if y.size:
        outer, channels, n = x.shape[0], x.shape[1], math.prod(x.shape[2:])
        sizes, epsilon = (
            GroupSizes(outer, groups, channels // groups, n),
            node.number("epsilon", 1e-5),
        )
        if not emit_shared_groups(b, x, scale, bias, y, sizes, epsilon):
            flat = (b.flat(tensor) for tensor in (x, scale, bias, y))
            b.call(normalize_planes, *flat, sizes, epsilon)
    return y


def _given_statistics(node: Node) -> Reason | None:
    if node.attrs.get("training_mode", 0) or (node.version < 7 and not node.attrs.get("is_test")):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "computes statistics (training)")
    if not node.attrs.get("spatial", 1):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "spatial is 0")
    if any(value is not None for value in node.outputs[1:]):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "outputs statistics (training)")
    return _statistics_of_channels(node)


def _statistics_of_channels(node: Node) -> Reason | None:
    """Refuses statistics that are known to be of more or fewer channels than there are."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if not shape:
        return None
    channels = shape[1] if len(shape) > 1 else 1
    for name, value in zip(("scale", "B", "mean", "var"), node.inputs[1:5], strict=False):
        if value is None or value.shape is None or not isinstance(channels, int):
            continue
        sizes = [size for size in value.shape if isinstance(size, int)]
        if len(sizes) == len(value.shape) and math.prod(sizes) != channels:
            return Reason(
                ReasonCode.UNSUPPORTED_SHAPE, f"{name} has shape {sizes} for {channels} channels"
            )
    return None


@kernel("BatchNormalization", dtypes=ALL_FLOATS, check=_given_statistics)
@through_float32
def batch_normalization(
    b: Builder,
    node: Node,
    x: Operand,
    scale: Operand,
    bias: Operand,
    mean: Operand,
    variance: Operand,
) -> Operand:
    """Normalization with given statistics, as one factor and term per channel."""
    y = b.empty(x.shape, x.dtype)
    if y.size == 0:
        return y
    channels = x.shape[1] if x.ndim > 1 else 1
    epsilon = node.number("epsilon", 1e-5)
    statistics = (scale, bias, mean, variance)
    if all(operand.const is not None for operand in statistics):
        folded = np.empty((2, channels), x.dtype)
        given = [b.value(operand) for operand in statistics]
        fold_statistics(given[0], given[1], given[2], given[3], folded[0], folded[1], epsilon)
        factors, terms = b.constant(folded[0]), b.constant(folded[1])
    else:
        factors, terms = b.empty((channels,), x.dtype), b.empty((channels,), x.dtype)
        b.call_numpy(fold_statistics, *statistics, factors, terms, epsilon)
    n = math.prod(x.shape[2:])
    b.call(scale_channels, b.flat(x), factors, terms, b.flat(y), x.shape[0], channels, n)
    return y
