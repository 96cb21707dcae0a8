"""Plans of strided copies: loops that are one, and the best two of them innermost.

A plan is made in Python for numbers, and by compiled code in programs whose sizes vary. Both run
the same functions, so that they have no branch on what a number is: a loop is three elements of the
plan, its length and its steps in the source and in the destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.loop_kernel import loop

CONTIGUOUS, STRIDED, TILED = 0, 1, 2
"""How the innermost loop goes: elements side by side, apart, or a transposition by tiles."""
HEADER = 11
"""Elements of a plan in front of its outer loops."""
_SHORT = 8
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
        dims: The box of indices.
        src_strides: Elements between neighbours in the source; 0 repeats, negative reverses.
        dst_strides: The same for the destination; positive.
        src_offset: Where the box's origin lies in the source.
        dst_offset: Where it lies in the destination.

    Returns:
        int64: source offset, destination offset, rows, mode, (n, ss, ds) of the second innermost
        and of the innermost dimension, the number of outer ones, and (n, ss, ds) of each of them.
    """
    axes = len(dims)
    box = [*dims, *src_strides, *dst_strides, src_offset, dst_offset]
    plan = [0] * plan_length(axes)
    kernels: tuple[Any, ...] = _sort, _merge, _innermost, _move, _cut, _finish
    sort, merge, innermost, move, cut, finish = (kernel.py_func for kernel in kernels)
    kept = merge(sort(box, plan, axes), plan)
    moved, place, mode = innermost(plan, kept)
    move(plan, moved, place)
    kept, near = cut(plan, kept, mode)
    move(plan, near, kept - 1)
    finish(box, plan, axes, kept, mode)
    return np.array(plan[: HEADER + 3 * plan[HEADER - 1]], np.int64)


def plan_length(axes: int) -> int:
    """Elements that a plan for so many axes is made in: one of them may be cut in two."""
    return HEADER + 3 * (axes + 1)


@loop
def plan_loops(box: Array, plan: Array, axes: int, tid: int, nt: int) -> None:
    """Makes a plan where a program runs.

    Args:
        box: int64: sizes, steps in the source, steps in the destination of so many axes, then both
            offsets.
        plan: int64, of `plan_length`: what `plan_copy` returns, and room behind it.
        axes: How many there are.
        tid: This thread; the first one plans.
        nt: All threads.
    """
    if tid == 0:
        kept = _merge(_sort(box, plan, axes), plan)
        moved, place, mode = _innermost(plan, kept)
        _move(plan, moved, place)
        kept, near = _cut(plan, kept, mode)
        _move(plan, near, kept - 1)
        _finish(box, plan, axes, kept, mode)


@loop
def _sort(box: Any, plan: Any, axes: int) -> int:
    """Writes the loops of more than one round, longest step in the destination first; how many."""
    kept = 0
    for k in range(axes):
        n, s, d = box[k], box[axes + k], box[2 * axes + k]
        if n != 1:
            at = HEADER + 3 * kept
            while at > HEADER and plan[at - 1] < d:
                plan[at], plan[at + 1], plan[at + 2] = plan[at - 3], plan[at - 2], plan[at - 1]
                at -= 3
            plan[at], plan[at + 1], plan[at + 2] = n, s, d
            kept += 1
    return kept


@loop
def _merge(count: int, plan: Any) -> int:
    """Makes one loop of two where the outer one goes on where the inner one ends; how many."""
    kept = 0
    for k in range(count):
        at, last = HEADER + 3 * k, HEADER + 3 * kept - 3
        n, s, d = plan[at], plan[at + 1], plan[at + 2]
        if kept > 0 and plan[last + 1] == s * n and plan[last + 2] == d * n:
            n *= plan[last]
        else:
            last += 3
            kept += 1
        plan[last], plan[last + 1], plan[last + 2] = n, s, d
    return kept


@loop
def _innermost(plan: Any, kept: int) -> Any:
    """Which loop goes to which place, and `TILED` if both innermost ones do, `STRIDED` if one does.

    What is no transposition and stays or becomes a long run is `CONTIGUOUS` so far.
    """
    end = HEADER + 3 * kept - 3
    reads, nearest = kept - 1, 0
    for k in range(kept - 1, -1, -1):
        step = abs(plan[HEADER + 3 * k + 1])
        if step != 0 and (nearest == 0 or step < nearest):
            reads, nearest = k, step
    if reads < kept - 1:
        # A transposition in these two. Tiles pay only if both are long; else the long one runs.
        source, target = plan[HEADER + 3 * reads], plan[end]
        mode = TILED if min(source, target) >= _SHORT else STRIDED
        place = kept - 2 if mode == TILED or target >= source else kept - 1
        return reads, place, mode
    moved = kept - 1
    if kept > 1 and plan[end] < _SHORT:
        # A long one runs, the nearest one.
        enough = 0
        for k in range(kept - 1):
            enough = max(enough, min(_SHORT, plan[HEADER + 3 * k]))
        runs = kept - 2
        while plan[HEADER + 3 * runs] < enough:
            runs -= 1
        if plan[HEADER + 3 * runs] > plan[end]:
            moved = runs
    return moved, kept - 1, CONTIGUOUS


@loop
def _move(plan: Any, moved: int, place: int) -> None:
    """Moves a loop inwards to a place; those between move outwards."""
    if moved < place:
        at = HEADER + 3 * moved
        n, s, d = plan[at], plan[at + 1], plan[at + 2]
        for to in range(at, HEADER + 3 * place, 3):
            plan[to], plan[to + 1], plan[to + 2] = plan[to + 3], plan[to + 4], plan[to + 5]
        at = HEADER + 3 * place
        plan[at], plan[at + 1], plan[at + 2] = n, s, d


@loop
def _cut(plan: Any, kept: int, mode: int) -> Any:
    """Cuts an innermost loop of far steps into pieces whose lines stay in the nearest cache.

    Lines that lie a multiple of 4 KiB apart push one another out of it, and the next round of the
    loop with the shortest step is to find them there.

    Returns:
        How many loops there are, and which of them becomes the innermost one.
    """
    end = HEADER + 3 * kept - 3
    if mode != STRIDED or kept < 3:
        return kept, kept - 1
    n, s, d = plan[end], plan[end + 1], plan[end + 2]
    far = max(abs(s), d)
    if far == 0 or far % _FAR != 0 or n <= _SHORT or n % _SHORT != 0:
        return kept, kept - 1
    near = 0
    for k in range(1, kept - 2):
        at, best = HEADER + 3 * k, HEADER + 3 * near
        if abs(plan[at + 1]) + plan[at + 2] < abs(plan[best + 1]) + plan[best + 2]:
            near = k
    if plan[HEADER + 3 * near] <= plan[end - 3]:
        near = kept - 1
    plan[end] = _SHORT
    for to in range(end + 3, HEADER, -3):
        plan[to], plan[to + 1], plan[to + 2] = plan[to - 3], plan[to - 2], plan[to - 1]
    at = HEADER
    plan[at], plan[at + 1], plan[at + 2] = n // _SHORT, _SHORT * s, _SHORT * d
    return kept + 1, near + 1


@loop
def _finish(box: Any, plan: Any, axes: int, kept: int, mode: int) -> None:
    """Writes what is in front of the outer loops."""
    end = HEADER + 3 * kept - 3
    rows = 1
    for k in range(kept - 1):
        rows *= plan[HEADER + 3 * k]
    if mode != TILED:
        is_run = kept == 0 or (plan[end + 1] == 1 and plan[end + 2] == 1)
        mode = CONTIGUOUS if is_run else STRIDED
    plan[0], plan[1], plan[2], plan[3] = box[3 * axes], box[3 * axes + 1], rows, mode
    for k in range(2):
        at, of = 4 + 3 * k, end - 3 + 3 * k
        if kept > 1 - k:
            plan[at], plan[at + 1], plan[at + 2] = plan[of], plan[of + 1], plan[of + 2]
        else:
            plan[at], plan[at + 1], plan[at + 2] = 1, 0, 0
    plan[10] = max(kept - 2, 0)
