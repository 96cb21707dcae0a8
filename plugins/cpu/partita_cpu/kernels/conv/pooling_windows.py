"""Loops of sliding-window pooling: one row of the output at a time, one tap after another.

All kernels take `Window.table` and share the output's rows among the threads. A tap is applied to
a whole row at once, so that unit strides become vector code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.kernel import jit


@jit(inline=True)
def _span(shift: int, stride: int, size: int, out: int) -> tuple[int, int]:
    """The outputs for which ``i * stride + shift`` lies within the input."""
    low = min(max(0, (stride - 1 - shift) // stride), out)
    return low, max(min(out, (size - 1 - shift) // stride + 1), low)


@register_jitable
def larger_term(best: Any, v: Any, p: int) -> Any:
    """The larger one; the best so far if the other is NaN."""
    return v if v > best else best


@register_jitable
def add_term(total: Any, v: Any, p: int) -> Any:
    """The sum."""
    return total + v


@register_jitable
def add_magnitude(total: Any, v: Any, p: int) -> Any:
    """The sum of magnitudes."""
    return total + abs(v)


@register_jitable
def add_square(total: Any, v: Any, p: int) -> Any:
    """The sum of squares."""
    return total + v * v


@register_jitable
def add_power(total: Any, v: Any, p: int) -> Any:
    """The sum of ``abs(x) ** p``."""
    return total + abs(v) ** p


def fold_windows(combine: Callable[[Any, Any, int], Any]) -> Callable[..., None]:
    """A kernel ``(x, y, table, start, p, tid, nt)`` that folds the elements under each window.

    It reads planes ``x`` of three dimensions and writes those of results to ``y``, both flat.
    ``table`` is `Window.table`: sizes, kernel, steps, dilations, padding and results, of three
    axes each. A result begins as ``start``.

    Args:
        combine: What is folded so far, an element and ``p`` to what is folded then.
    """

    def fold(x: Array, y: Array, table: Array, start: float, p: int, tid: int, nt: int) -> None:
        id_, ih, iw = table[0], table[1], table[2]
        kd, kh, kw = table[3], table[4], table[5]
        sd, sh, sw = table[6], table[7], table[8]
        dd, dh, dw = table[9], table[10], table[11]
        pd, ph, pw = table[12], table[13], table[14]
        od, oh, ow = table[15], table[16], table[17]
        first = y.dtype.type(start)
        rows = y.size // max(ow, 1)
        for row in range(rows * tid // nt, rows * (tid + 1) // nt):
            plane = row // (od * oh)
            z0 = row // oh % od * sd - pd
            y0 = row % oh * sh - ph
            to = row * ow
            for i in range(ow):
                y[to + i] = first
            for a in range(kd):
                z = z0 + a * dd
                if z < 0 or z >= id_:
                    continue
                for b in range(kh):
                    r = y0 + b * dh
                    if r < 0 or r >= ih:
                        continue
                    line = ((plane * id_ + z) * ih + r) * iw
                    for c in range(kw):
                        shift = c * dw - pw
                        low, high = _span(shift, sw, iw, ow)
                        at = line + shift
                        if sw == 1:
                            for i in range(low, high):
                                v = x[np.uint64(at + i)]
                                y[np.uint64(to + i)] = combine(y[np.uint64(to + i)], v, p)
                        else:
                            for i in range(low, high):
                                v = x[np.uint64(at + i * sw)]
                                y[np.uint64(to + i)] = combine(y[np.uint64(to + i)], v, p)

    fold.__name__ = fold.__qualname__ = f"fold_windows_{combine.__name__}"
    return jit(fold)


max_windows = fold_windows(larger_term)
"""The largest element under each window; ``start`` where there is none, and no ``p``."""

_POWERS = {0: add_term, 1: add_magnitude, 2: add_square}
_power_windows = {p: fold_windows(combine) for p, combine in _POWERS.items()}
_any_power = fold_windows(add_power)


def power_windows(p: int) -> Callable[..., None]:
    """The kernel for the sum of ``abs(x) ** p`` under each window; of x itself for p = 0."""
    return _power_windows.get(p, _any_power)


def fold_planes(combine: Callable[[Any, Any, int], Any]) -> Callable[..., None]:
    """A kernel that folds windows of unit steps whose results are as many as their elements.

    Each plane is folded down and then across, a vector of any rows at a time; the columns at both
    sides, for which elements of other rows were taken so, are folded once more.

    The kernel ``(x, y, scratch, start, rows, columns, down, across, tid, nt)`` reads planes ``x``
    of (rows, columns) and writes as many to ``y``, both flat; windows reach ``down`` elements to
    either side along rows and ``across`` along columns. ``scratch`` has a plane for each thread.

    Args:
        combine: As for `fold_windows`.
    """

    @jit(inline=True)
    def take(to: Array, of: Array, size: int, step: int) -> None:
        """Folds into each element those so many places before and behind it."""
        for i in range(size - step):
            to[np.uint64(i)] = combine(to[np.uint64(i)], of[np.uint64(i + step)], 0)
        for i in range(step, size):
            to[np.uint64(i)] = combine(to[np.uint64(i)], of[np.uint64(i - step)], 0)

    def fold(
        x: Array,
        y: Array,
        scratch: Array,
        start: float,
        rows: int,
        columns: int,
        down: int,
        across: int,
        tid: int,
        nt: int,
    ) -> None:
        size = rows * columns
        planes = x.size // max(size, 1)
        first = y.dtype.type(start)
        folded = scratch[tid * size : (tid + 1) * size]
        edge = min(across, columns)
        for plane in range(planes * tid // nt, planes * (tid + 1) // nt):
            source, target = x[plane * size : plane * size + size], y[plane * size :]
            for i in range(size):
                folded[np.uint64(i)] = combine(first, source[np.uint64(i)], 0)
            for d in range(1, min(down, rows - 1) + 1):
                take(folded, source, size, d * columns)
            for i in range(size):
                target[np.uint64(i)] = folded[np.uint64(i)]
            for d in range(1, edge + 1):
                take(target, folded, size, d)
            for row in range(rows):
                line = row * columns
                for n in range(2 * edge):
                    c = n if n < edge else columns - 1 - (n - edge)
                    low, high = max(0, c - across), min(columns, c + across + 1)
                    total = folded[line + low]
                    for q in range(low + 1, high):
                        total = combine(total, folded[line + q], 0)
                    target[line + c] = total

    fold.__name__ = fold.__qualname__ = f"fold_planes_{combine.__name__}"
    return jit(fold)


max_planes, sum_planes = fold_planes(larger_term), fold_planes(add_term)


@jit
def max_windows_with_index(
    x: Array,
    y: Array,
    index: Array,
    table: Array,
    lowest: float,
    column_major: int,
    tid: int,
    nt: int,
) -> None:
    """`max_windows`, and the place of each maximum in the whole of x; the first one of equals.

    Args:
        x: (planes, D, H, W) numbers, flat.
        y: Output (planes, depth, height, width), flat.
        index: Output, as y.
        table: `Window.table`.
        lowest: What a window without elements has.
        column_major: Whether places are counted along D, then H, then W.
        tid: This thread.
        nt: All threads; they share rows of y.
    """
    id_, ih, iw = table[0], table[1], table[2]
    kd, kh, kw = table[3], table[4], table[5]
    sd, sh, sw = table[6], table[7], table[8]
    dd, dh, dw = table[9], table[10], table[11]
    pd, ph, pw = table[12], table[13], table[14]
    od, oh, ow = table[15], table[16], table[17]
    rows = y.size // max(ow, 1)
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        plane = row // (od * oh)
        z0 = row // oh % od * sd - pd
        y0 = row % oh * sh - ph
        base = plane * id_ * ih * iw
        for i in range(ow):
            best, place = y.dtype.type(lowest), -1
            for a in range(kd):
                z = z0 + a * dd
                for b in range(kh):
                    r = y0 + b * dh
                    for c in range(kw):
                        q = i * sw - pw + c * dw
                        if 0 <= z < id_ and 0 <= r < ih and 0 <= q < iw:
                            v = x[base + (z * ih + r) * iw + q]
                            if v > best or place < 0:
                                best = v
                                if column_major:
                                    place = base + z + (r + q * ih) * id_
                                else:
                                    place = base + (z * ih + r) * iw + q
            y[row * ow + i] = best
            index[row * ow + i] = place


@jit
def divide_windows(
    y: Array, depths: Array, heights: Array, widths: Array, tid: int, nt: int
) -> None:
    """Divides each sum by the number of its elements, a product of one count per dimension.

    Args:
        y: Sums, flat; their means afterwards.
        depths: Elements under a window for each place in depth.
        heights: Those for each place down.
        widths: Those for each place across.
        tid: This thread.
        nt: All threads; they share rows.
    """
    od, oh, ow = depths.size, heights.size, widths.size
    rows = y.size // max(ow, 1)
    low = high = ow // 2  # between the two, windows have as many elements as in the middle
    while low > 0 and widths[low - 1] == widths[ow // 2]:
        low -= 1
    while high < ow and widths[high] == widths[ow // 2]:
        high += 1
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        count, line = depths[row // oh % od] * heights[row % oh], row * ow
        usual = y.dtype.type(max(count * widths[ow // 2], 1))
        for i in range(low, high):
            y[np.uint64(line + i)] /= usual
        for i in range(low):
            y[line + i] /= y.dtype.type(max(count * widths[i], 1))
        for i in range(high, ow):
            y[line + i] /= y.dtype.type(max(count * widths[i], 1))


@jit(reassociate=True)
def row_sums(x: Array, y: Array, p: int, divisor: float, tid: int, nt: int) -> None:
    """For each row of x the sum of ``abs(x) ** p``, of x itself for p = 0, over `divisor`.

    Args:
        x: Rows, flat.
        y: One sum for each.
        p: The power.
        divisor: What sums are divided by.
        tid: This thread.
        nt: All threads; they share rows.
    """
    rows = y.size
    inner = x.size // max(rows, 1)
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        line = x[row * inner : (row + 1) * inner]
        total = y.dtype.type(0)
        if p == 0:
            for i in range(inner):
                total += line[i]
        elif p == 1:
            for i in range(inner):
                total += abs(line[i])
        elif p == 2:
            for i in range(inner):
                total += line[i] * line[i]
        else:
            for i in range(inner):
                total += abs(line[i]) ** p
        y[row] = total / y.dtype.type(divisor)
