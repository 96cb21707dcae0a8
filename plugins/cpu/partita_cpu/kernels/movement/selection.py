"""Operators that pick elements by their values: the largest, the nonzero, the different ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.errors import InputError, OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita.lowering.shapes.symbolic_size import integer
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.movement.index_steps import taken
from partita_cpu.kernels.movement.rearrange import transposed
from partita_cpu.kernels.operator_table import ALL_FLOATS, ANY, BOOL, INT64, NUMBERS, kernel


@jit(inline=True)
def _before(a: Any, i: int, b: Any, j: int, largest: int) -> bool:
    """Whether element a at place i comes before element b at place j; places break ties."""
    if a == b:
        return i < j
    return bool(a > b) if largest else bool(a < b)


@jit
def _sink(values: Array, places: Array, root: int, size: int, largest: int) -> None:
    """Restore the heap below `root`; its first element is the one that comes last."""
    value, place = values[root], places[root]
    while True:
        child = 2 * root + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _before(
            values[child], places[child], values[other], places[other], largest
        ):
            child = other
        if not _before(value, place, values[child], places[child], largest):
            break
        values[root], places[root] = values[child], places[child]
        root = child
    values[root], places[root] = value, place


@jit
def top_k_rows(
    x: Array, values: Array, places: Array, n: int, k: int, largest: int, tid: int, nt: int
) -> None:
    """The first `k` of each row of `n` elements in order, and where they were.

    A heap of k elements is kept in the output itself; its sorting then leaves them in order.

    Args:
        x: (rows, n) numbers, flat.
        values: Output (rows, k), flat.
        places: Output (rows, k): where in its row each was, flat.
        n: Elements of a row.
        k: How many are taken; 1 to n.
        largest: Whether the largest come first, not the smallest.
        tid: This thread.
        nt: All threads; they share rows.
    """
    rows = values.size // k
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        line = x[row * n : (row + 1) * n]
        best = values[row * k : (row + 1) * k]
        where = places[row * k : (row + 1) * k]
        for i in range(k):
            best[i] = line[i]
            where[i] = i
        for i in range(k // 2 - 1, -1, -1):
            _sink(best, where, i, k, largest)
        for i in range(k, n):
            if _before(line[i], i, best[0], where[0], largest):
                best[0] = line[i]
                where[0] = i
                _sink(best, where, 0, k, largest)
        for last in range(k - 1, 0, -1):
            best[0], best[last] = best[last], best[0]
            where[0], where[last] = where[last], where[0]
            _sink(best, where, 0, last, largest)


@kernel("TopK", dtypes={0: NUMBERS | ALL_FLOATS, 1: INT64})
@through_float32
def top_k(b: Builder, node: Node, x: Operand, k: Operand | None = None) -> tuple[Operand, Operand]:
    """The k largest or smallest along an axis, in order; of equal ones the first comes first."""
    count = integer(node.attrs["k"] if k is None else b.value(k).ravel()[0])
    axis = axis_of(node, node.attrs.get("axis", -1), x.ndim)
    if not 0 <= count <= x.shape[axis]:
        raise OperandError(
            f"Operation '{node.name}' (TopK) wants {count} of {x.shape[axis]} elements."
        )
    to_last = [*(a for a in range(x.ndim) if a != axis), axis]
    rows = transposed(b, x, to_last)
    n = rows.shape[-1]
    values = b.empty((*rows.shape[:-1], count), x.dtype)
    places = b.empty(values.shape, np.int64)
    with b.if_any(values.size) as is_any:
        if is_any:
            largest = int(node.attrs.get("largest", 1))
            flat = b.flat(rows), b.flat(values), b.flat(places)
            b.call(top_k_rows, *flat, n, count, largest, work=4 * x.size)
    back = np.argsort(to_last).tolist()
    return transposed(b, values, back), transposed(b, places, back)


@kernel("NonZero", dtypes=ANY)
def non_zero(b: Builder, node: Node, x: Operand) -> Operand:
    """Coordinates of the nonzero elements, one row per dimension: none of a scalar."""
    return b.dynamic(_coordinates, [x], [np.int64])[0]


def _coordinates(x: Array) -> tuple[Array]:
    found = np.array(np.nonzero(np.atleast_1d(x)), dtype=np.int64)
    return (found if x.ndim else found[:0],)


@kernel("Compress", dtypes={0: ANY, 1: BOOL})
def compress(b: Builder, node: Node, x: Operand, condition: Operand) -> Operand:
    """The slices along an axis, or elements of the flat tensor, whose condition is true."""
    given = node.attrs.get("axis")
    if given is None:
        x, axis = b.flat(x), 0
    else:
        axis = axis_of(node, given, x.ndim)
    if condition.const is not None:
        places = np.flatnonzero(condition.const)
        return taken(b, x, axis, places.size, np.asarray, places)
    return b.dynamic(_compressed, [x, condition, axis], [x.dtype])[0]


def _compressed(x: Array, condition: Array, axis: int) -> tuple[Array]:
    chosen = np.flatnonzero(condition)
    if chosen.size and chosen[-1] >= x.shape[axis]:
        raise InputError(
            f"Compress: the condition selects element {chosen[-1]} of axis {axis}, which has "
            f"{x.shape[axis]}."
        )
    return (np.take(x, chosen, axis=axis),)


@kernel("Unique", dtypes=ANY)
def unique(b: Builder, node: Node, x: Operand) -> tuple[Operand, ...]:
    """The different elements or slices, where each was first, which each is, and how often."""
    axis = node.attrs.get("axis")
    axis = axis if axis is None else axis_of(node, axis, x.ndim)
    in_order = bool(node.attrs.get("sorted", 1))
    return b.dynamic(_unique, [x, axis, in_order], [x.dtype, np.int64, np.int64, np.int64])


def _unique(x: Array, axis: int | None, in_order: bool) -> tuple[Array, ...]:
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.ravel()
    if not in_order:
        order = np.argsort(first)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return values, first, inverse, counts
