"""One strided copy serves every operator that only moves elements.

Transpose, Slice, Concat, Expand, Tile, DepthToSpace... are all `dst[i . ds] = src[i . ss]` over
some box of indices. The emitter says the box and both stride vectors; `copy_plan` collapses them to
few dimensions and chooses the loop order; `copy_nd` walks the plan. Elements are handled as
unsigned integers of their size (`ItemSized`), so that four compiled signatures serve all dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.boxes import Box
from partita.lowering.shapes.symbolic_size import has_varied, holds_sizes, integers
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_wrappers import ItemSized
from partita_cpu.kernels.elementwise.cast import NARROW
from partita_cpu.kernels.movement.copy_plan import (
    CONTIGUOUS,
    HEADER,
    STRIDED,
    TILED,
    plan_copy,
    plan_length,
    plan_loops,
)
from partita_cpu.kernels.operator_table import ANY, DTypes

MOVABLE: DTypes = ANY | NARROW | {np.dtype(np.complex64)}
"""Element types that operators take which never look at the elements."""

_TILE = 16
_FEW_ROWS = 4
"""Of a thread: of fewer each takes a part of every one."""


@jit
def copy_nd(src: Array, dst: Array, plan: Array, tid: int, nt: int) -> None:
    """Copy by `plan` (see `plan_copy`); the threads share rows of the nest, or parts of few."""
    rows = plan[2]
    mode = plan[3]
    n1, ss1, ds1 = plan[4], plan[5], plan[6]
    n0, ss0, ds0 = plan[7], plan[8], plan[9]
    row = rows * tid // nt
    end = rows * (tid + 1) // nt
    left, right = 0, n0
    if mode != TILED and rows < _FEW_ROWS * nt:
        # All threads take their part of every row.
        row, end = 0, rows
        left, right = n0 * tid // nt, n0 * (tid + 1) // nt
    while row < end:
        quotient = row // n1
        first = row - quotient * n1
        stop = min(n1, first + end - row)
        row += stop - first
        so = plan[0]
        do = plan[1]
        for k in range(plan[10] - 1, -1, -1):
            at = HEADER + 3 * k
            rest = quotient // plan[at]
            i = quotient - rest * plan[at]
            quotient = rest
            so += i * plan[at + 1]
            do += i * plan[at + 2]
        if mode == CONTIGUOUS:
            for j in range(first, stop):
                s = so + j * ss1
                d = do + j * ds1
                for i in range(left, right):
                    dst[np.uint64(d + i)] = src[np.uint64(s + i)]
        elif mode == STRIDED:
            for j in range(first, stop):
                s = so + j * ss1
                d = do + j * ds1
                for i in range(left, right):
                    dst[np.uint64(d + i * ds0)] = src[np.uint64(s + i * ss0)]
        else:
            for jb in range(first, stop, _TILE):
                je = min(jb + _TILE, stop)
                for ib in range(0, n0, _TILE):
                    ie = min(ib + _TILE, n0)
                    for j in range(jb, je):
                        s = so + j * ss1
                        d = do + j * ds1
                        for i in range(ib, ie):
                            dst[np.uint64(d + i * ds0)] = src[np.uint64(s + i * ss0)]


_copy_bits = ItemSized(copy_nd, 2)


def copy_box(b: Builder, source: Box, target: Box, sizes: Sequence[int]) -> None:
    """Records a copy of a box of elements; nothing where it is empty.

    Args:
        b: Records it.
        source: What is read.
        target: What is written, of elements of the same size.
        sizes: Of both boxes, outermost dimension first.

    Raises:
        CompileError: The box reaches beyond one of them.
    """
    numbers = *sizes, *source.strides, *target.strides, source.start, target.start
    unasked = has_varied(numbers)
    if any(type(n) is int and n == 0 for n in sizes) or (not unasked and 0 in sizes):
        return
    source.check(b.node, sizes)
    target.check(b.node, sizes)
    if holds_sizes(numbers):
        plan = b.scratch(plan_length(len(sizes)), np.int64)
        b.call(plan_loops, b.constant(integers(numbers)), plan, len(sizes))
    else:
        found = plan_copy(sizes, source.strides, target.strides, source.start, target.start)
        plan = b.constant(found)
    b.call(_copy_bits, b.flat(source.tensor), b.flat(target.tensor), plan)


def copied(b: Builder, x: Operand) -> Operand | None:
    """Record a copy of all elements; ``None`` for types that no kernel moves."""
    if x.dtype not in MOVABLE:
        return None
    y = b.empty(x.shape, x.dtype)
    copy_box(b, Box(x, [1]), Box(y, [1]), [x.size])
    return y
