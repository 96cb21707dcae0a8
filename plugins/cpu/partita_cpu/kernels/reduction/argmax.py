"""Positions of the largest and smallest elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import Kernel
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, INTS, kernel
from partita_cpu.kernels.reduction.reduce_loops import lanes_of, share_of_lanes


@register_jitable
def above(a: Any, b: Any) -> Any:
    """Whether a later ``a`` replaces ``b`` as the largest."""
    return a > b


@register_jitable
def above_or_equal(a: Any, b: Any) -> Any:
    """The same, where the last of equal ones wins."""
    return a >= b


@register_jitable
def below(a: Any, b: Any) -> Any:
    """Whether a later ``a`` replaces ``b`` as the smallest."""
    return a < b


@register_jitable
def below_or_equal(a: Any, b: Any) -> Any:
    """The same, where the last of equal ones wins."""
    return a <= b


def _position_kernel(replaces: Callable[..., Any]) -> Kernel:
    """A kernel ``(x, y, best, outer, n, inner, tid, nt)`` that finds places along an axis.

    It reads ``x`` (outer, n, inner) and writes int64 places to ``y`` (outer, inner), both flat;
    ``best`` is scratch of the size of ``y`` and the type of ``x``, not touched where inner is 1.

    Args:
        replaces: Whether a later element takes the place of the one that was best so far.
    """

    def position(
        x: Any, y: Any, best: Any, outer: int, n: int, inner: int, tid: int, nt: int
    ) -> None:
        begin, end, pieces = share_of_lanes(outer, inner, tid, nt)
        for task in range(begin, end):
            o, first, last = lanes_of(task, pieces, inner)
            found = y[o * inner + first : o * inner + last]
            if inner == 1:
                row = x[o * n : (o + 1) * n]
                at = 0
                top = row[0]
                for k in range(1, row.size):
                    if replaces(row[k], top):
                        top = row[k]
                        at = k
                found[0] = at
                continue
            tops = best[o * inner + first : o * inner + last]
            for k in range(n):
                row = x[(o * n + k) * inner + first : (o * n + k) * inner + last]
                for i in range(found.size):
                    better = k == 0 or replaces(row[i], tops[i])
                    tops[i] = row[i] if better else tops[i]
                    found[i] = k if better else found[i]

    position.__name__ = position.__qualname__ = f"position_{replaces.__name__}"
    return loop(position)


_POSITIONS = {
    ("ArgMax", 0): _position_kernel(above),
    ("ArgMax", 1): _position_kernel(above_or_equal),
    ("ArgMin", 0): _position_kernel(below),
    ("ArgMin", 1): _position_kernel(below_or_equal),
}


@kernel("ArgMax", "ArgMin", dtypes=ALL_FLOATS | INTS)
@through_float32
def position(b: Builder, node: Node, x: Operand) -> Operand:
    """Where the largest or smallest element along an axis is."""
    shape = list(x.shape) or [1]
    axis = axis_of(b.node, node.attrs.get("axis", 0), len(shape))
    n, inner = shape[axis], math.prod(shape[axis + 1 :])
    shape[axis : axis + 1] = [1] if node.attrs.get("keepdims", 1) else []
    if not x.shape:
        shape = []
    y = b.empty(shape, np.int64)
    if y.size:
        best = b.empty((y.size,) if inner > 1 else (1,), x.dtype)
        function = _POSITIONS[node.op_type, node.attrs.get("select_last_index", 0)]
        b.call(function, b.flat(x), b.flat(y), best, y.size // inner, n, inner)
    return y
