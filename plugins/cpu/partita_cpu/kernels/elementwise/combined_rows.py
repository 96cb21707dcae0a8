"""Arithmetic and comparisons of floats that broadcast, by native kernels of rows.

A loop of Python's syntax begins anew for each row, which takes longer than a row of few elements.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.shapes.symbolic_size import Number, integers
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.jit.intrinsics.address_call import address, call_combine
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import (
    merged_loops,
    share_of_rows,
    strides_in,
)
from partita_cpu.llvm.elementwise_rows import COMPARISONS
from partita_cpu.llvm.levels import Level

FEW = 8
"""Rows that lie together; where there are no more, those of another axis are taken together."""


class RowOperand(NamedTuple):
    """Elements of a tensor that an operator reads.

    Attributes:
        tensor: The tensor.
        strides: Elements from one to the next along each axis of the result, 0 where one is
            repeated; 1 or 0 along the last axis that is longer than 1.
        start: The first one that is read.
    """

    tensor: Operand
    strides: Sequence[int]
    start: int = 0


@loop
def combine_nest(
    a: Array, b: Array, y: Array, kernel: Array, nest: Array, tid: int, nt: int
) -> None:
    """``y = a + b``, or another function, over a nest of four loops.

    Args:
        a: float32, flat.
        b: float32, flat.
        y: float32, or bool of comparisons, flat.
        kernel: What combines rows; see `llvm.elementwise_rows`.
        nest: Lengths of the loops, then the elements from one round to the next, of a, b and y,
            then the first elements of a and b.
        tid: This thread.
        nt: All threads; they share rows, or columns of few rows.
    """
    n1, n2, inner = nest[1], nest[2], nest[3]
    first, last, start, stop = share_of_rows(nest[0] * n1 * n2, inner, tid, nt)
    from_a, from_b, unit = address(a) + 4 * nest[15], address(b) + 4 * nest[16], y.itemsize
    line = first // n2
    row = first - line * n2
    i0 = line // n1
    i1 = line - i0 * n1
    while first < last:
        count = min(n2 - row, last - first)
        call_combine(
            kernel[0],
            (
                count,
                stop - start,
                from_a + 4 * (i0 * nest[4] + i1 * nest[5] + row * nest[6] + start * nest[7]),
                4 * nest[6],
                from_b + 4 * (i0 * nest[8] + i1 * nest[9] + row * nest[10] + start * nest[11]),
                4 * nest[10],
                address(y) + unit * (i0 * nest[12] + i1 * nest[13] + row * nest[14] + start),
                unit * nest[14],
            ),
        )
        first += count
        row = 0
        i1 += 1
        if i1 == n1:
            i1 = 0
            i0 += 1


def emit_combined(b: Builder, verb: str, pair: tuple[Operand, Operand], y: Operand) -> bool:
    """Records ``y = a + b``, or what else is done with two numbers, if there is a kernel for it.

    Args:
        b: Records it.
        verb: One of `llvm.elementwise_rows.VERBS` or `COMPARISONS`.
        pair: What is read; broadcasts to the shape of the result.
        y: What is written.

    Returns:
        Whether it was recorded; not other types than float32, and not on machines without kernels.
    """
    parts = [RowOperand(x, strides_in(x.shape, y.shape)) for x in pair]
    return emit_rows(b, verb, (parts[0], parts[1]), y)


def emit_rows(b: Builder, verb: str, pair: tuple[RowOperand, RowOperand], y: Operand) -> bool:
    """As `emit_combined`, of elements that lie apart."""
    policy = native_policy(b.options)
    if policy is None or b.folding or any(part.tensor.dtype != np.float32 for part in pair):
        return False
    nest = merged_loops(y.shape, [part.strides for part in pair])
    if nest is None or y.dtype != (np.bool_ if verb in COMPARISONS else np.float32):
        return False
    with b.if_any(y.size) as is_any:
        if is_any:
            name, plan = nest_of(*nest, (pair[0].start, pair[1].start))
            flat = (b.flat(operand) for operand in (pair[0].tensor, pair[1].tensor, y))
            kernel = b.constant(row_kernel(policy.level, verb, name))
            b.call(combine_nest, *flat, kernel, b.constant(integers(plan)))
    return True


@functools.cache
def row_kernel(level: Level, verb: str, name: str) -> Array:
    """The kernel of a verb in an array; its name ends in one of `llvm.elementwise_rows.SINGLES`."""
    part = "_comparisons" if verb in COMPARISONS else ""
    return np.array([addresses(level, part)[f"{verb}_{name}"]])


def nest_of(
    lengths: list[int], strides: list[list[int]], starts: tuple[int, int] = (0, 0)
) -> tuple[str, list[Number]]:
    """Which kernels are for a nest of loops, and the loops as `combine_nest` takes them.

    Args:
        lengths: Of four loops, outermost first.
        strides: Elements from one round of each to the next, of either operand.
        starts: The first element of either.

    Returns:
        The end of the kernels' names, one of `llvm.elementwise_rows.SINGLES`, and the loops.
    """
    first, second = strides
    into: list[Number] = [lengths[1] * lengths[2] * lengths[3], lengths[2] * lengths[3], lengths[3]]
    axes = _rows_last(lengths)
    name = "rows" if first[3] and second[3] else "second" if first[3] else "first"
    plan = [
        *(lengths[axis] for axis in (*axes, 3)),
        *(own[axis] for own in (first, second) for axis in (*axes, 3)),
        *(into[axis] for axis in axes),
        *starts,
    ]
    return name, plan


def _rows_last(lengths: list[int]) -> tuple[int, int, int]:
    """The three outer loops so that many rows lie in the last one; as they are, if sizes vary."""
    outer = lengths[:3]
    if any(type(length) is not int for length in outer) or outer[2] >= FEW:
        return 0, 1, 2
    longest = max(range(3), key=lambda axis: (outer[axis], axis))
    rest = [axis for axis in range(3) if axis != longest]
    return rest[0], rest[1], longest
