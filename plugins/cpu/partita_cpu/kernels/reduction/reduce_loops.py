"""The loops of reductions: one axis of a tensor (outer, axis, inner).

Rows are cut off at the end of the input, so that the last one may be shorter than the others. Sums
of floats are kept in blocks that are added up in float64: the error does not grow with the length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import Kernel
from partita_cpu.scalar.instructions import (
    add_in_any_order,
    bits,
    larger_integer,
    like,
    maximum,
    ordered,
    wide_vectors,
)
from partita_cpu.scalar.math import exp, log

BLOCK = 512
"""Elements that are summed in their own type before they enter the float64 sum."""
SHORT = 8
"""Rows of so many elements are summed one by one."""
LANES = 64
"""Neighbouring results that one thread computes together when the last axis is kept."""


@loop(inline=True)
def share_of_lanes(outer: int, inner: int, tid: int, nt: int) -> Any:
    """A thread's share of tasks, each of which makes LANES neighbouring results.

    Args:
        outer: Rows of results.
        inner: Results of a row.
        tid: Number of the thread.
        nt: How many threads there are.

    Returns:
        Its first task, the one behind its last, and how many tasks a row has.
    """
    pieces = (inner + LANES - 1) // LANES
    tasks = outer * pieces
    return tasks * tid // nt, tasks * (tid + 1) // nt, pieces


@loop(inline=True)
def lanes_of(task: int, pieces: int, inner: int) -> Any:
    """The outer index of a task, its first result within that, and the one behind its last.

    Args:
        task: Number of the task; `pieces` of them make an outer index.
        pieces: Tasks for each outer index, of `LANES` results each.
        inner: Results of each outer index.
    """
    o = task // pieces
    first = (task - o * pieces) * LANES
    return o, first, min(first + LANES, inner)


@register_jitable
def same_term(x: Any) -> Any:
    """The element itself."""
    return x


@register_jitable
def square_term(x: Any) -> Any:
    """The element squared."""
    return x * x


@register_jitable
def sum_of_row(row: Any) -> Any:
    """The sum of a float row in float64, right to a few ulp of float32."""
    total = np.float64(0)
    for start in range(0, row.size, BLOCK):
        block = row[start : start + BLOCK]
        part = like(block[0], 0)
        for i in range(block.size):
            part = add_in_any_order(part, block[i])
        total += np.float64(part)
    return total


def sum_kernel(term: Callable[..., Any]) -> Kernel:
    """A kernel ``(x, y, sums, outer, n, inner, tid, nt)`` that sums ``term`` of floats.

    It reads ``x`` (outer, n, inner) and writes ``y`` (outer, inner), both flat; ``sums`` is float64
    scratch of the size of ``y``, not touched where inner is 1.

    Args:
        term: What is summed, of an element.
    """

    def sum_terms(
        x: Any, y: Any, sums: Any, outer: int, n: int, inner: int, tid: int, nt: int
    ) -> None:
        if inner == 1 and n <= SHORT:
            for o in range(outer * tid // nt, outer * (tid + 1) // nt):
                part = like(x[0], 0)
                for i in range(n):
                    part += term(x[np.uint64(o * n + i)])
                y[o] = part
            return
        if inner == 1 and n <= BLOCK:
            # Without slices, which take as long as short rows do.
            for o in range(outer * tid // nt, outer * (tid + 1) // nt):
                part = like(x[0], 0)
                for i in range(n):
                    part = add_in_any_order(part, term(x[np.uint64(o * n + i)]))
                y[o] = part
            return
        if inner == 1:
            for o in range(outer * tid // nt, outer * (tid + 1) // nt):
                row = x[o * n : (o + 1) * n]
                total = np.float64(0)
                for start in range(0, row.size, BLOCK):
                    block = row[start : start + BLOCK]
                    part = like(block[0], 0)
                    for i in range(block.size):
                        part = add_in_any_order(part, term(block[i]))
                    total += np.float64(part)
                y[o] = total
            return
        begin, end, pieces = share_of_lanes(outer, inner, tid, nt)
        if n == 2:
            for task in range(begin, end):
                o, first, last = lanes_of(task, pieces, inner)
                at = 2 * o * inner
                one, other = x[at + first : at + last], x[at + inner + first : at + inner + last]
                part_row = y[o * inner + first : o * inner + last]
                for i in range(part_row.size):
                    part_row[i] = (like(one[i], 0) + term(one[i])) + term(other[i])
            return
        for task in range(begin, end):
            o, first, last = lanes_of(task, pieces, inner)
            part_row = y[o * inner + first : o * inner + last]
            total_row = sums[o * inner + first : o * inner + last]
            total_row[:] = 0
            for start in range(0, n, BLOCK):
                part_row[:] = 0
                for k in range(start, min(start + BLOCK, n)):
                    row = x[(o * n + k) * inner + first : (o * n + k) * inner + last]
                    for i in range(part_row.size):
                        part_row[i] += term(row[i])
                for i in range(part_row.size):
                    total_row[i] += part_row[i]
            for i in range(part_row.size):
                part_row[i] = total_row[i]

    sum_terms.__name__ = sum_terms.__qualname__ = f"sum_terms_{term.__name__}"
    return loop(sum_terms)


def fold_kernel(combine: Callable[..., Any], term: Callable[..., Any] = same_term) -> Kernel:
    """A kernel ``(x, y, outer, n, inner, tid, nt)`` that folds ``term`` by ``combine``.

    It reads ``x`` (outer, n, inner) and writes ``y`` (outer, inner), both flat; n is not 0.

    Args:
        combine: Two terms to one.
        term: What is folded, of an element.
    """

    def fold(x: Any, y: Any, outer: int, n: int, inner: int, tid: int, nt: int) -> None:
        if inner == 1:
            for o in range(outer * tid // nt, outer * (tid + 1) // nt):
                row = x[o * n : (o + 1) * n]
                result = like(row[0], term(row[0]))
                for i in range(1, row.size):
                    result = like(result, combine(result, like(result, term(row[i]))))
                y[o] = result
            return
        begin, end, pieces = share_of_lanes(outer, inner, tid, nt)
        for task in range(begin, end):
            o, first, last = lanes_of(task, pieces, inner)
            target = y[o * inner + first : o * inner + last]
            for k in range(n):
                row = x[(o * n + k) * inner + first : (o * n + k) * inner + last]
                if k == 0:
                    for i in range(target.size):
                        target[i] = term(row[i])
                else:
                    for i in range(target.size):
                        target[i] = combine(target[i], like(row[i], term(row[i])))

    fold.__name__ = fold.__qualname__ = f"fold_{combine.__name__}_{term.__name__}"
    return loop(fold)


@register_jitable
def negative_term(x: Any) -> Any:
    """The element with the other sign."""
    return -x


def extreme_kernel(combine: Callable[..., Any], turned: Callable[..., Any]) -> Kernel:
    """A kernel as `fold_kernel` makes it for the largest or the smallest of floats.

    Rows are compared as integers, which LLVM does in vectors of any row's length.

    Args:
        combine: Two floats to one, NaN if either is NaN.
        turned: `same_term` for the largest, `negative_term` for the smallest.
    """
    fold = fold_kernel(combine)

    def extreme(x: Any, y: Any, outer: int, n: int, inner: int, tid: int, nt: int) -> None:
        if inner > 1:
            fold(x, y, outer, n, inner, tid, nt)
            return
        for o in range(outer * tid // nt, outer * (tid + 1) // nt):
            top = ordered(turned(x[np.uint64(o * n)]))
            undefined = like(top, 0)
            for i in range(n):
                value = turned(x[np.uint64(o * n + i)])
                top = larger_integer(top, ordered(value))
                undefined |= like(top, value != value)
            y[o] = like(y[o], np.nan) if undefined else turned(bits(ordered(top)))

    extreme.__name__ = extreme.__qualname__ = f"extreme_{combine.__name__}"
    return loop(extreme)


@loop
def log_sum_exp(
    x: Any, y: Any, sums: Any, outer: int, n: int, inner: int, tid: int, nt: int
) -> None:
    """``log(sum(exp(x)))`` along an axis, without overflow.

    Args:
        x: (outer, n, inner), flat.
        y: Result (outer, inner), flat.
        sums: float64 scratch of the size of `y`; not touched where inner is 1.
        outer: How many slices lie before the axis: the product of the sizes before it.
        n: Size of the axis.
        inner: Elements from one place along the axis to the next: the product of later sizes.
        tid: This thread.
        nt: All threads; they share the slices, and parts of these.
    """
    wide_vectors()
    infinity = like(y[0], np.inf)
    if inner == 1:
        for o in range(outer * tid // nt, outer * (tid + 1) // nt):
            row = x[o * n : (o + 1) * n]
            top = -infinity
            for i in range(row.size):
                top = maximum(top, row[i])
            shift = like(top, 0) if abs(top) == infinity else top
            total = np.float64(0)
            for start in range(0, row.size, BLOCK):
                block = row[start : start + BLOCK]
                part = like(top, 0)
                for i in range(block.size):
                    part = add_in_any_order(part, exp(block[i] - shift))
                total += np.float64(part)
            y[o] = np.log(total) + shift
        return
    begin, end, pieces = share_of_lanes(outer, inner, tid, nt)
    for task in range(begin, end):
        o, first, last = lanes_of(task, pieces, inner)
        top_row = y[o * inner + first : o * inner + last]
        total_row = sums[o * inner + first : o * inner + last]
        top_row[:] = -infinity
        total_row[:] = 0
        for k in range(n):
            row = x[(o * n + k) * inner + first : (o * n + k) * inner + last]
            for i in range(row.size):
                top_row[i] = maximum(top_row[i], row[i])
        for i in range(top_row.size):
            top_row[i] = like(infinity, 0) if abs(top_row[i]) == infinity else top_row[i]
        for k in range(n):
            row = x[(o * n + k) * inner + first : (o * n + k) * inner + last]
            for i in range(row.size):
                total_row[i] += exp(row[i] - top_row[i])
        for i in range(top_row.size):
            top_row[i] = top_row[i] + log(total_row[i])
