"""Normalization over a window of channels, by a norm, and over free axes."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import broadcast, emit_broadcast
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, kernel
from partita_cpu.kernels.reduction.reduce import reduce_axes
from partita_cpu.kernels.reduction.reduce_loops import lanes_of, share_of_lanes
from partita_cpu.scalar.instructions import like, sqrt

DEVIATION_FLOOR = 1e-9
"""What MeanVarianceNormalization adds to the deviation."""


class LocalResponse(NamedTuple):
    """How many channels around are added up, and what becomes of the sum."""

    size: int
    alpha: Any
    beta: Any
    offset: Any


@loop
def normalize_window(
    x: Any,
    y: Any,
    outer: int,
    channels: int,
    inner: int,
    response: LocalResponse,
    tid: int,
    nt: int,
) -> None:
    """``x / (offset + alpha * sum of squares of the channels around) ** beta``.

    Args:
        x: (outer, channels, inner) numbers, flat.
        y: Output, as x; sums of squares first.
        outer: Images.
        channels: Channels of an image.
        inner: Elements of a channel.
        response: The window and the constants of the formula.
        tid: This thread.
        nt: All threads; they share planes, or lanes of them.
    """
    size, alpha, beta, offset = response
    begin, end, pieces = share_of_lanes(outer * channels, inner, tid, nt)
    for task in range(begin, end):
        plane, first, last = lanes_of(task, pieces, inner)
        channel = plane % channels
        base = (plane - channel) * inner
        target = y[plane * inner + first : plane * inner + last]
        source = x[plane * inner + first : plane * inner + last]
        target[:] = 0
        low = max(0, channel - (size - 1) // 2)
        high = min(channels - 1, channel + size // 2)
        for other in range(low, high + 1):
            neighbour = x[base + other * inner + first : base + other * inner + last]
            for i in range(target.size):
                target[i] += neighbour[i] * neighbour[i]
        if beta == like(beta, 0.75):
            for i in range(target.size):
                root = sqrt(offset + alpha * target[i])
                target[i] = source[i] / (root * sqrt(root))
        else:
            for i in range(target.size):
                target[i] = source[i] / (offset + alpha * target[i]) ** beta


@kernel("LRN", dtypes=ALL_FLOATS)
@through_float32
def local_response_normalization(b: Builder, node: Node, x: Operand) -> Operand:
    """Division by a power of the channels around."""
    y = b.empty(x.shape, x.dtype)
    if y.size == 0:
        return y
    size = int(node.attrs["size"])
    number = x.dtype.type
    b.call(
        normalize_window,
        b.flat(x),
        b.flat(y),
        x.shape[0],
        x.shape[1],
        math.prod(x.shape[2:]),
        LocalResponse(
            size,
            number(node.number("alpha", 1e-4) / size),
            number(node.number("beta", 0.75)),
            number(node.number("bias", 1.0)),
        ),
        work=x.nbytes * size,
    )
    return y


@register_jitable
def divide_by_norm(a: Any, norm: Any) -> Any:
    """``a / norm``, and 0 where the norm is 0."""
    zero = like(norm, 0)
    return a / (like(norm, 1) if norm == zero else norm)


@register_jitable
def divide_by_deviation(a: Any, variance: Any) -> Any:
    """``a`` over the root of a variance, kept away from 0."""
    return a / (sqrt(variance) + like(variance, DEVIATION_FLOOR))


@register_jitable
def mean_free_square(a: Any, mean: Any) -> Any:
    """The squared difference from the mean."""
    return (a - mean) * (a - mean)


_by_norm, _by_deviation = broadcast(divide_by_norm), broadcast(divide_by_deviation)
_subtract, _mean_free_square = broadcast(operator.sub), broadcast(mean_free_square)


@kernel("LpNormalization", dtypes=ALL_FLOATS)
@through_float32
def norm_normalization(b: Builder, node: Node, x: Operand) -> Operand:
    """Division by the 1-norm or 2-norm along an axis."""
    axis = axis_of(b.node, node.attrs.get("axis", -1), x.ndim)
    op_type = "ReduceL1" if node.attrs.get("p", 2) == 1 else "ReduceL2"
    y = b.empty(x.shape, x.dtype)
    if y.size:
        norm = reduce_axes(b, op_type, x, frozenset({axis}))
        emit_broadcast(b, _by_norm, [x, norm], y)
    return y


@kernel("MeanVarianceNormalization", dtypes=ALL_FLOATS)
@through_float32
def mean_variance_normalization(b: Builder, node: Node, x: Operand) -> Operand:
    """Mean 0 and variance 1 over the given axes."""
    given = node.attrs.get("axes", [0, 2, 3])
    axes = frozenset(axis_of(b.node, axis, x.ndim) for axis in given)
    y = b.empty(x.shape, x.dtype)
    if y.size == 0:
        return y
    mean = reduce_axes(b, "ReduceMean", x, axes)
    squares, centered = b.empty(x.shape, x.dtype), b.empty(x.shape, x.dtype)
    emit_broadcast(b, _mean_free_square, [x, mean], squares)
    variance = reduce_axes(b, "ReduceMean", squares, axes)
    emit_broadcast(b, _subtract, [x, mean], centered)
    emit_broadcast(b, _by_deviation, [centered, variance], y)
    return y
