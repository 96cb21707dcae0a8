"""One strided copy serves every operator that only moves elements.

Transpose, Slice, Concat, Expand, Tile, DepthToSpace... are all `dst[i . ds] = src[i . ss]` over
some box of indices. The emitter says the box and both stride vectors; `plan_copy` collapses them to
few dimensions and chooses the loop order; `copy_nd` walks the plan. Elements are handled as
unsigned integers of their size (`ItemSized`), so that four compiled signatures serve all dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.boxes import Box
from partita.lowering.shapes.symbolic_size import Size, evaluated, has_varied, integers
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_wrappers import ItemSized
from partita_cpu.kernels.elementwise.cast import NARROW
from partita_cpu.kernels.operator_table import ANY, DTypes

MOVABLE: DTypes = ANY | NARROW | {np.dtype(np.complex64)}
"""Element types that operators take which never look at the elements."""

_CONTIGUOUS, _STRIDED, _TILED = 0, 1, 2
_HEADER = 11
_TILE = 16
_SHORT = 8
_FEW_ROWS = 4
"""Of a thread: of fewer each takes a part of every one."""
_FAR = 256
"""Elements: lines that lie a multiple of so many apart share few sets of a cache."""


def plan_copy(
    dims: Sequence[int],
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    src_offset: int = 0,
    dst_offset: int = 0,
) -> Array:
    """The loop nest for `copy_nd`: collapsed, with the best two dimensions innermost.

    Args:
        dims: The box of indices, all sizes at least 1.
        src_strides: Elements between neighbours in the source; 0 repeats, negative reverses.
        dst_strides: The same for the destination; positive.
        src_offset: Where the box's origin lies in the source.
        dst_offset: Where it lies in the destination.

    Returns:
        int64: source offset, destination offset, rows, mode, (n, ss, ds) of the second innermost
        and of the innermost dimension, the number of outer ones, and (n, ss, ds) of each of them.
    """
    return integers(_plan(dims, src_strides, dst_strides, src_offset, dst_offset))


def _plan(
    dims: Sequence[int],
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    src_offset: int,
    dst_offset: int,
) -> list[int]:
    loops = [[n, s, d] for n, s, d in zip(dims, src_strides, dst_strides, strict=True) if n != 1]
    loops.sort(key=lambda loop: -loop[2])
    merged: list[list[int]] = []
    for n, s, d in loops:
        if merged and merged[-1][1] == s * n and merged[-1][2] == d * n:
            merged[-1] = [merged[-1][0] * n, s, d]
        else:
            merged.append([n, s, d])
    mode = _order_inner(merged)
    while len(merged) < 2:
        merged.insert(0, [1, 0, 0])
    rows = math.prod(n for n, _, _ in merged[:-1])
    outer = merged[:-2]
    plan = [src_offset, dst_offset, rows, mode, *merged[-2], *merged[-1], len(outer)]
    return plan + [v for loop in outer for v in loop]


def _order_inner(loops: list[list[int]]) -> int:
    """Move the two dimensions that should be innermost to the end of `loops`; the loop's mode."""
    if len(loops) < 2:
        return _CONTIGUOUS if all(s == d == 1 for _, s, d in loops) else _STRIDED
    writes = len(loops) - 1  # sorted: the last one has the shortest step in the destination
    moving = [k for k in range(len(loops)) if loops[k][1] != 0]
    reads = min(moving, key=lambda k: (abs(loops[k][1]), -k), default=writes)
    if reads != writes:
        # A transposition in these two. Tiles pay only if both are long; else the long one runs.
        source = loops.pop(reads)
        if min(source[0], loops[-1][0]) >= _SHORT:
            loops.insert(-1, source)
            return _TILED
        loops.insert(-1 if loops[-1][0] >= source[0] else len(loops), source)
        _cut_far_steps(loops)
    elif loops[-1][0] < _SHORT:
        # A long one runs, the nearest one.
        longest = max(loop[0] for loop in loops[:-1])
        enough = min(_SHORT, longest)
        runs = next(k for k in range(len(loops) - 2, -1, -1) if loops[k][0] >= enough)
        if loops[runs][0] > loops[-1][0]:
            loops.append(loops.pop(runs))
    return _CONTIGUOUS if loops[-1][1] == loops[-1][2] == 1 else _STRIDED


def _cut_far_steps(loops: list[list[int]]) -> None:
    """Cuts an innermost loop of far steps into pieces whose lines stay in the nearest cache.

    Lines that lie a multiple of 4 KiB apart push one another out of it, and the next round of the
    loop with the shortest step is to find them there.
    """
    n, source, target = loops[-1]
    far = max(abs(source), target)
    if len(loops) < 3 or far == 0 or far % _FAR:
        return
    piece = evaluated(_piece, n)
    if not isinstance(piece, Size) and piece == n:
        return
    loops[-1] = [piece, source, target]
    near = min(range(len(loops) - 2), key=lambda k: abs(loops[k][1]) + loops[k][2])
    if loops[near][0] > loops[-2][0]:
        loops.insert(len(loops) - 1, loops.pop(near))
    loops.insert(0, [n // piece, piece * source, piece * target])


def _piece(n: int) -> int:
    """How many of so many steps are a piece: all, where they are few or pieces would be uneven."""
    return _SHORT if n > _SHORT and n % _SHORT == 0 else n


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
    if mode != _TILED and rows < _FEW_ROWS * nt:
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
            at = _HEADER + 3 * k
            rest = quotient // plan[at]
            i = quotient - rest * plan[at]
            quotient = rest
            so += i * plan[at + 1]
            do += i * plan[at + 2]
        if mode == _CONTIGUOUS:
            for j in range(first, stop):
                s = so + j * ss1
                d = do + j * ds1
                for i in range(left, right):
                    dst[np.uint64(d + i)] = src[np.uint64(s + i)]
        elif mode == _STRIDED:
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
    if 0 in sizes:
        return
    source.check(b.node, sizes)
    target.check(b.node, sizes)
    numbers = *sizes, *source.strides, *target.strides, source.start, target.start
    if has_varied(numbers):
        length = _HEADER + 3 * max(len(sizes) - 1, 0)
        plan = b.computed((length,), np.int64, _plan_for_sizes, len(sizes), *numbers)
    else:
        found = plan_copy(sizes, source.strides, target.strides, source.start, target.start)
        plan = b.constant(found)
    b.call(_copy_bits, b.flat(source.tensor), b.flat(target.tensor), plan)


def _plan_for_sizes(axes: int, *numbers: int) -> Array:
    """The loop nest for numbers of sizes, strides and offsets, as long as any of so many axes."""
    dims, sources, targets = (numbers[k * axes : (k + 1) * axes] for k in range(3))
    plan = _plan(dims, sources, targets, *numbers[3 * axes :])
    plan += [0] * (_HEADER + 3 * max(axes - 1, 0) - len(plan))
    return np.array(plan, np.int64)


def copied(b: Builder, x: Operand) -> Operand | None:
    """Record a copy of all elements; ``None`` for types that no kernel moves."""
    if x.dtype not in MOVABLE:
        return None
    y = b.empty(x.shape, x.dtype)
    copy_box(b, Box(x, [1]), Box(y, [1]), [x.size])
    return y
