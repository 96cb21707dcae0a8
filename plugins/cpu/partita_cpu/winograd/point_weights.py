"""Weights of 3 x 3 taps at the points of Winograd's minimal filtering, and the way back."""

from __future__ import annotations

import functools
import math

import numpy as np

from partita.lowering import Array
from partita.system.memory_map import give_back
from partita_cpu.gemm.packing.weights import aligned, run_shared, shared_by
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.images.winograd import POINTS, TAPS, pixels_of
from partita_cpu.scalar.half_floats import bfloat16_to_float32, float32_to_bfloat16
from partita_cpu.scalar.instructions import bits
from partita_cpu.scalar.subnormal import flushed

_TAPS = 9

_MAGNITUDE, _INFINITE = 0x7FFFFFFF, 0x7F800000
"""Of a float32's bits those but the sign, and what these are of an infinite one; NaN has more."""


@functools.cache
def evaluation(side: int) -> Array:
    """(n, 3): values of a polynomial of three coefficients at the points, as tiles need them.

    At finite points they are divided by what Lagrange's interpolation divides by; the last row is
    the value at infinity. All who ask share the array.
    """
    points = [0.0, *(sign * p for p in POINTS[side] for sign in (1.0, -1.0))]
    rows = []
    for point in points:
        divisor = math.prod(point - other for other in points if other != point)
        rows.append([point**k / divisor for k in range(TAPS)])
    return np.array([*rows, [0.0, 0.0, 1.0]])


@functools.cache
def recovery(side: int) -> Array:
    """(3, n): the coefficients out of the values.

    The first one is the value at 0, the last one that at infinity, and the one between half of what
    the values at the largest point and its opposite differ by. All who ask share the array.
    """
    values = evaluation(side)
    found = np.zeros((TAPS, pixels_of(side)))
    found[0, 0], found[2, -1] = 1 / values[0, 0], 1.0
    found[1, -3:-1] = 0.5 / values[-3, 1], -0.5 / values[-3, 1]
    return found


def transformed_size(
    outputs: int, channels: int, side: int, columns: int, in_pairs: bool = False
) -> int:
    """How many uint16 transformed weights take, for tiles of so many columns."""
    rows = -(-channels // 2) if in_pairs else channels
    return 2 * -(-outputs // columns) * pixels_of(side) ** 2 * rows * columns


def transform(
    w: Array, side: int, columns: int, threads: int = 1, *, in_pairs: bool = False
) -> Array:
    """Weights at the points, in the order in which tile kernels read them.

    They are computed in float64 and rounded to float32, and then to bfloat16 in pairs.

    Args:
        w: Float32 weights (outputs, channels, 3, 3).
        side: Results down and across a tile.
        columns: Of a tile of the products.
        threads: Threads that share the work.
        in_pairs: Whether they become bfloat16, two channels side by side.

    Returns:
        Bits of float32 (column of tiles, point, channel, column) as flat uint16, or of bfloat16
        (column of tiles, point, pair of channels, column, 2); zeros for outputs and channels that
        do not exist and in place of subnormal numbers; empty if some are not finite.
    """
    outputs, channels = w.shape[:2]
    out = aligned(transformed_size(outputs, channels, side, columns, in_pairs))
    if in_pairs and channels % 2:
        out[:] = 0
    threads = shared_by(threads, out)
    n = pixels_of(side)
    room = np.empty((threads, (n * n + n * TAPS + _TAPS) * columns))
    found = np.zeros(threads, np.int64)
    sizes = np.array((outputs, channels, n, columns, in_pairs), np.int64)
    flat = np.ascontiguousarray(w, np.float32).reshape(-1)
    values = evaluation(side).reshape(-1)
    views = out.view(np.float32), out
    run_shared(threads, _transform, flat, *views, values, room, found, sizes)
    give_back(w)
    return out if found.max() < _INFINITE else out[:0]


# Memory decides how long it takes: unrolled, it would only take longer to compile.
@loop(effort=Effort.LOOPS)
def _transform(
    w: Array,
    out: Array,
    halves: Array,
    values: Array,
    room: Array,
    found: Array,
    p: Array,
    tid: int,
    nt: int,
) -> None:
    """Transforms the weights of one channel and of the outputs of a tile's columns at a time.

    Args:
        w: (outputs, channels, 9), flat.
        out: (column of tiles, point, channel, column), flat; written unless weights are in pairs.
        halves: (column of tiles, point, pair of channels, column, 2), flat, in the same memory.
        values: `evaluation`, flat.
        room: For each thread, float64 that it writes to meanwhile.
        found: For each thread, the largest bit pattern of an absolute value that it wrote.
        p: Outputs, channels, points along an axis, columns, whether weights are in pairs.
        tid: This thread.
        nt: All threads; they share columns of tiles and channels.
    """
    outputs, channels, n, columns, in_pairs = p[0], p[1], p[2], p[3], p[4]
    rows = (channels + 1) // 2 if in_pairs else channels
    own = room[tid]
    taps = own[: _TAPS * columns]
    lines = own[_TAPS * columns : (_TAPS + n * TAPS) * columns]
    points = own[(_TAPS + n * TAPS) * columns :]
    units = -(-outputs // columns) * channels
    largest = np.int32(0)
    for unit in range(units * tid // nt, units * (tid + 1) // nt):
        block = unit // channels
        channel = unit - block * channels
        exist = min(columns, outputs - block * columns)
        for tap in range(_TAPS):
            first = ((block * columns) * channels + channel) * _TAPS + tap
            for c in range(exist):
                taps[tap * columns + c] = w[np.uint64(first + c * channels * _TAPS)]
            for c in range(exist, columns):
                taps[tap * columns + c] = 0.0
        for i in range(n):
            for b in range(TAPS):
                _mix(
                    values,
                    TAPS * i,
                    taps,
                    b * columns,
                    TAPS,
                    lines,
                    (i * TAPS + b) * columns,
                    columns,
                )
        for i in range(n):
            for j in range(n):
                _mix(
                    values,
                    TAPS * j,
                    lines,
                    i * TAPS * columns,
                    1,
                    points,
                    (i * n + j) * columns,
                    columns,
                )
        for point in range(n * n):
            row = channel // 2 if in_pairs else channel
            to = ((block * n * n + point) * rows + row) * columns
            for c in range(columns):
                value = flushed(np.float32(points[np.uint64(point * columns + c)]))
                if in_pairs:
                    half = float32_to_bfloat16(value)
                    halves[np.uint64(2 * (to + c) + channel % 2)] = half
                    value = bfloat16_to_float32(half)
                else:
                    out[np.uint64(to + c)] = value
                largest = max(largest, np.int32(bits(value) & _MAGNITUDE))
    found[tid] = largest


@loop
def _mix(
    values: Array, row: int, x: Array, first: int, apart: int, y: Array, to: int, columns: int
) -> None:
    """``y[to:] = the sum over k of values[row + k] * x[first + k * apart * columns:]``.

    Args:
        values: `evaluation`, flat.
        row: Where the point's three values begin.
        x: What is mixed.
        first: Where its first row begins.
        apart: Rows from one that is mixed to the next.
        y: Gets the sums.
        to: Where.
        columns: Of a row.
    """
    step = apart * columns
    a, b, c = values[row], values[row + 1], values[row + 2]
    for i in range(columns):
        at = first + i
        y[np.uint64(to + i)] = (
            a * x[np.uint64(at)] + b * x[np.uint64(at + step)] + c * x[np.uint64(at + 2 * step)]
        )


_FLOATS, _DOUBLES, _WORDS = np.zeros(0, np.float32), np.zeros(0), np.zeros(0, np.int64)
_SHORTS, _ROOM = np.zeros(0, np.uint16), np.zeros((0, 0))
CALLS = ((_transform, (_FLOATS, _FLOATS, _SHORTS, _DOUBLES, _ROOM, _WORDS, _WORDS)),)
"""What is compiled here, and arguments like those that it is called with."""
