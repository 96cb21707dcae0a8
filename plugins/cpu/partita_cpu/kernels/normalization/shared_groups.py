"""Normalization of few large groups, each of which several threads share.

A group is summed, and its squares are, in parts that do not depend on how many threads there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.normalization.norm_loops import (
    GroupSizes,
    inverse_deviation,
    moments,
)
from partita_cpu.kernels.reduction.reduce_loops import BLOCK, sum_of_row
from partita_cpu.scalar.instructions import like, muladd

PART = 8 * BLOCK
"""Elements that are summed by one thread."""

LONG_GROUP = 4 * PART
"""Elements of a group from which on three steps take less time than one of fewer threads."""


def emit_shared_groups(
    b: Builder,
    x: Operand,
    scale: Operand,
    bias: Operand,
    y: Operand,
    sizes: GroupSizes,
    epsilon: float,
) -> bool:
    """Records `normalize_planes` as steps that threads share, where groups are few and long.

    Args:
        b: Records them.
        x: (outer, groups * planes, n) numbers.
        scale: A factor for each of groups * planes channels.
        bias: A term for each of them.
        y: Output, as x.
        sizes: Of x.
        epsilon: Added to a group's variance.

    Returns:
        Whether it was done; otherwise nothing was recorded.
    """
    policy, length = native_policy(b.options), sizes.planes * sizes.n
    rows = sizes.outer * sizes.groups
    if policy is None or b.folding or not rows < policy.threads or length < LONG_GROUP:
        return False
    parts = -(-length // PART)
    sums, squares = (b.empty((rows, n * parts), np.float64) for n in (1, 2))
    flat, held = b.flat(x), (b.flat(sums), b.flat(squares))
    b.call(sum_parts, flat, held[0], rows, length, work=x.size)
    b.call(square_parts, flat, *held, rows, length, work=x.size)
    rest = b.flat(scale), b.flat(bias), b.flat(y), sizes, epsilon
    b.call(normalize_by_parts, flat, *held, *rest, work=x.size)
    return True


@loop
def sum_parts(x: Array, sums: Array, rows: int, length: int, tid: int, nt: int) -> None:
    """The sum of each part of each row, in float64.

    Args:
        x: (rows, length) numbers, flat.
        sums: Output (rows, parts of a row), flat.
        rows: How many.
        length: Elements of a row.
        tid: This thread.
        nt: All threads; they share parts.
    """
    parts = -(-length // PART)
    for number in range(rows * parts * tid // nt, rows * parts * (tid + 1) // nt):
        start = number % parts * PART
        first = number // parts * length
        sums[number] = sum_of_row(x[first + start : first + min(start + PART, length)])


@loop(inline=True)
def _center(sums: Array, row: int, length: int) -> Any:
    """About the mean of a row."""
    parts, total = -(-length // PART), np.float64(0)
    for number in range(row * parts, (row + 1) * parts):
        total += sums[number]
    return total / np.float64(length)


@loop
def square_parts(
    x: Array, sums: Array, squares: Array, rows: int, length: int, tid: int, nt: int
) -> None:
    """What each part of a row has beyond about the mean, and the squares of that, in float64.

    Args:
        x: (rows, length) numbers, flat.
        sums: What `sum_parts` wrote.
        squares: Output (rows, parts of a row, 2), flat: sums over the part.
        rows: How many.
        length: Elements of a row.
        tid: This thread.
        nt: All threads; they share parts.
    """
    parts = -(-length // PART)
    number, last = rows * parts * tid // nt, rows * parts * (tid + 1) // nt
    while number < last:
        row = number // parts
        center = like(x[0], _center(sums, row, length))
        behind = min((row + 1) * parts, last)
        while number < behind:
            start = number % parts * PART
            piece = x[row * length + start : row * length + min(start + PART, length)]
            rest, square = moments(piece, center)
            squares[2 * number], squares[2 * number + 1] = rest * piece.size, square * piece.size
            number += 1


@loop
def normalize_by_parts(
    x: Array,
    sums: Array,
    squares: Array,
    scale: Array,
    bias: Array,
    y: Array,
    sizes: GroupSizes,
    epsilon: float,
    tid: int,
    nt: int,
) -> None:
    """What `normalize_planes` writes, by the sums of parts.

    Args:
        x: (outer, groups * planes, n) numbers, flat.
        sums: What `sum_parts` wrote.
        squares: What `square_parts` wrote.
        scale: Factor of each of groups * planes channels.
        bias: Term of each of these channels.
        y: Output, as x.
        sizes: Of x.
        epsilon: Added to a group's variance.
        tid: This thread.
        nt: All threads; they share elements.
    """
    outer, groups, planes, n = sizes
    length = planes * n
    parts = -(-length // PART)
    at, end = outer * groups * length * tid // nt, outer * groups * length * (tid + 1) // nt
    while at < end:
        row = at // length
        center = like(y[0], _center(sums, row, length))
        rest, square = np.float64(0), np.float64(0)
        for number in range(row * parts, (row + 1) * parts):
            rest += squares[2 * number]
            square += squares[2 * number + 1]
        rest, square = rest / length, square / length
        inverse = like(center, inverse_deviation(square, rest, epsilon))
        missing = like(center, rest)
        behind = min((row + 1) * length, end)
        while at < behind:
            plane = at // n
            channel = row % groups * planes + plane % planes
            stop = min((plane + 1) * n, behind)
            factor, term = inverse * scale[channel], bias[channel]
            before, after = x[at:stop], y[at:stop]
            for i in range(after.size):
                after[i] = muladd((before[i] - center) - missing, factor, term)
            at = stop
