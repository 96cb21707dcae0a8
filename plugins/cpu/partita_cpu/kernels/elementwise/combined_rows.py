"""Sums, differences, products and quotients of floats that broadcast, by native kernels of rows.

A loop of Python's syntax begins anew for each row, which takes longer than a row of few elements.
"""

from __future__ import annotations

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.shapes.symbolic_size import Number, integers
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.gemm.tile_kernels import single_kernel
from partita_cpu.jit.intrinsics.address_call import address, call_combine
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import loop_nest, share_of_rows

FEW = 8
"""Rows that lie together; where there are no more, those of another axis are taken together."""


@loop
def combine_nest(
    a: Array, b: Array, y: Array, kernel: Array, nest: Array, tid: int, nt: int
) -> None:
    """``y = a + b``, or another function, over a nest of four loops.

    Args:
        a: float32, flat.
        b: float32, flat.
        y: float32, flat.
        kernel: What combines rows; see `llvm.elementwise_rows`.
        nest: Lengths of the loops, then the elements from one round to the next: of a, b and y.
        tid: This thread.
        nt: All threads; they share rows, or columns of few rows.
    """
    n1, n2, inner = nest[1], nest[2], nest[3]
    first, last, start, stop = share_of_rows(nest[0] * n1 * n2, inner, tid, nt)
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
                address(a) + 4 * (i0 * nest[4] + i1 * nest[5] + row * nest[6] + start * nest[7]),
                4 * nest[6],
                address(b) + 4 * (i0 * nest[8] + i1 * nest[9] + row * nest[10] + start * nest[11]),
                4 * nest[10],
                address(y) + 4 * (i0 * nest[12] + i1 * nest[13] + row * nest[14] + start),
                4 * nest[14],
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
        verb: One of `llvm.elementwise_rows.VERBS`.
        pair: What is read; broadcasts to the shape of the result.
        y: What is written.

    Returns:
        Whether it was recorded; not other types than float32, and not on machines without kernels.
    """
    policy = native_policy(b.options)
    single = np.dtype(np.float32)
    if policy is None or b.folding or any(x.dtype != single for x in (*pair, y)):
        return False
    nest = loop_nest(y.shape, pair)
    if nest is None:
        return False
    if not y.size:
        return True
    name, plan = nest_of(*nest)
    kernel = b.constant(single_kernel(policy.level, f"{verb}_{name}"))
    flat = (b.flat(operand) for operand in (*pair, y))
    b.call(combine_nest, *flat, kernel, b.constant(integers(plan)))
    return True


def nest_of(lengths: list[int], strides: list[list[int]]) -> tuple[str, list[Number]]:
    """Which kernels are for a nest of loops, and the loops as `combine_nest` takes them.

    Args:
        lengths: Of four loops, outermost first.
        strides: Elements from one round of each to the next, of either operand.

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
