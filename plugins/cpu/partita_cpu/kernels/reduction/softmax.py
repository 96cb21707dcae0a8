"""Softmax, LogSoftmax and Hardmax along an axis, or over all trailing axes as until opset 12."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, kernel
from partita_cpu.kernels.reduction.reduce_loops import lanes_of, share_of_lanes
from partita_cpu.scalar.instructions import (
    add_in_any_order,
    bits,
    larger_integer,
    like,
    maximum,
    ordered,
    wide_vectors,
)
from partita_cpu.scalar.math import copy_row, exp_below_zero, log, row_maximum


@loop
def softmax_rows(x: Any, y: Any, outer: int, n: int, tid: int, nt: int) -> None:
    """Softmax of rows of n elements.

    Args:
        x: Rows, flat.
        y: As x.
        outer: Rows.
        n: Elements of a row.
        tid: This thread.
        nt: All threads; they share rows.
    """
    wide_vectors()
    for o in range(outer * tid // nt, outer * (tid + 1) // nt):
        first = o * n
        # Slices would take as long as short rows do.
        highest = ordered(x[np.uint64(first)])
        for i in range(n):
            highest = larger_integer(highest, ordered(x[np.uint64(first + i)]))
        top = bits(ordered(highest))
        total = like(top, 0)
        for i in range(n):
            value = exp_below_zero(x[np.uint64(first + i)] - top)
            y[np.uint64(first + i)] = value
            total = add_in_any_order(total, value)
        scale = like(top, 1) / total
        for i in range(n):
            y[np.uint64(first + i)] *= scale


@loop
def log_softmax_rows(x: Any, y: Any, outer: int, n: int, tid: int, nt: int) -> None:
    """Logarithm of the softmax of rows of n elements.

    Args:
        x: Rows, flat.
        y: As x.
        outer: Rows.
        n: Elements of a row.
        tid: This thread.
        nt: All threads; they share rows.
    """
    wide_vectors()
    for o in range(outer * tid // nt, outer * (tid + 1) // nt):
        source, target = x[o * n : (o + 1) * n], y[o * n : (o + 1) * n]
        top = row_maximum(source)
        total = like(top, 0)
        for i in range(target.size):
            total = add_in_any_order(total, exp_below_zero(source[i] - top))
        shift = log(total)
        for i in range(target.size):
            target[i] = (source[i] - top) - shift


@loop
def softmax_columns(
    x: Any,
    y: Any,
    tops: Any,
    totals: Any,
    outer: int,
    n: int,
    inner: int,
    logarithmic: int,
    tid: int,
    nt: int,
) -> None:
    """Softmax or its logarithm along the middle axis; ``tops`` and ``totals`` are scratch.

    Args:
        x: (outer, n, inner) numbers, flat.
        y: Output, as x.
        tops: Scratch (outer, inner): the largest number of each column.
        totals: Scratch (outer, inner): the sum of its powers.
        outer: Elements of all axes before the one.
        n: Elements of the axis.
        inner: Elements of all axes behind it.
        logarithmic: Whether the result is the logarithm.
        tid: This thread.
        nt: All threads; they share columns.
    """
    wide_vectors()
    begin, end, pieces = share_of_lanes(outer, inner, tid, nt)
    for task in range(begin, end):
        o, first, last = lanes_of(task, pieces, inner)
        top = tops[o * inner + first : o * inner + last]
        total = totals[o * inner + first : o * inner + last]
        copy_row(x[o * n * inner + first : o * n * inner + last], top)
        total[:] = 0
        for k in range(1, n):
            source = x[(o * n + k) * inner + first : (o * n + k) * inner + last]
            for i in range(source.size):
                top[i] = maximum(top[i], source[i])
        for k in range(n):
            source = x[(o * n + k) * inner + first : (o * n + k) * inner + last]
            target = y[(o * n + k) * inner + first : (o * n + k) * inner + last]
            for i in range(target.size):
                shifted = source[i] - top[i]
                value = exp_below_zero(shifted)
                total[i] += value
                target[i] = shifted if logarithmic else value
        for i in range(total.size):
            total[i] = log(total[i]) if logarithmic else like(total[i], 1) / total[i]
        for k in range(n):
            target = y[(o * n + k) * inner + first : (o * n + k) * inner + last]
            if logarithmic:
                for i in range(target.size):
                    target[i] -= total[i]
            else:
                for i in range(target.size):
                    target[i] *= total[i]


@loop
def hardmax_lines(x: Any, y: Any, outer: int, n: int, inner: int, tid: int, nt: int) -> None:
    """1 for the first largest element along the middle axis, else 0.

    Args:
        x: (outer, n, inner) elements, flat.
        y: As x.
        outer: Elements before the axis.
        n: Size of the axis.
        inner: Elements behind it.
        tid: This thread.
        nt: All threads; they share lines along the axis.
    """
    lines = outer * inner
    for line in range(lines * tid // nt, lines * (tid + 1) // nt):
        o = line // inner
        start = o * n * inner + line - o * inner
        at = start
        for k in range(n):
            here = start + k * inner
            y[here] = 0
            if x[here] > x[at]:
                at = here
        y[at] = 1


def _extents(b: Builder, node: Node, x: Operand) -> tuple[int, int, int]:
    """The tensor as (outer, axis, inner)."""
    if node.version >= 13:
        axis = axis_of(b.node, node.attrs.get("axis", -1), x.ndim)
        return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    axis = axis_of(b.node, node.attrs.get("axis", 1), x.ndim)
    return math.prod(x.shape[:axis]), math.prod(x.shape[axis:]), 1


@kernel("Softmax", "LogSoftmax", dtypes=ALL_FLOATS)
@through_float32
def softmax(b: Builder, node: Node, x: Operand) -> Operand:
    """Softmax or its logarithm."""
    y = b.empty(x.shape, x.dtype)
    if x.size == 0:
        return y
    outer, n, inner = _extents(b, node, x)
    logarithmic = node.op_type == "LogSoftmax"
    # One exponential costs about as much as moving eight bytes.
    work = 8 * x.nbytes
    if inner == 1:
        function = log_softmax_rows if logarithmic else softmax_rows
        b.call(function, b.flat(x), b.flat(y), outer, n, work=work)
        return y
    tops, totals = (b.empty((outer * inner,), x.dtype) for _ in range(2))
    b.call(
        softmax_columns,
        b.flat(x),
        b.flat(y),
        tops,
        totals,
        outer,
        n,
        inner,
        int(logarithmic),
        work=work,
    )
    return y


@kernel("Hardmax", dtypes=ALL_FLOATS)
@through_float32
def hardmax(b: Builder, node: Node, x: Operand) -> Operand:
    """1 for the first largest element, else 0."""
    y = b.empty(x.shape, x.dtype)
    if x.size:
        outer, n, inner = _extents(b, node, x)
        b.call(hardmax_lines, b.flat(x), b.flat(y), outer, n, inner)
    return y
