"""GridSample and AffineGrid: images read at places that another tensor names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.linalg.matmul import product
from partita_cpu.kernels.movement.rearrange import ints
from partita_cpu.kernels.operator_table import ALL_FLOATS, INT64, kernel

_NEAREST, _LINEAR, _CUBIC = 0, 1, 2
_MODES = {
    "nearest": _NEAREST,
    "linear": _LINEAR,
    "bilinear": _LINEAR,
    "cubic": _CUBIC,
    "bicubic": _CUBIC,
}
_ZEROS, _REFLECTION = 0, 2
_TOGETHER = 4
"""Channels whose results are made of the same elements of their planes together."""

_PADDINGS = {"zeros": _ZEROS, "border": 1, "reflection": _REFLECTION}


@jit(inline=True)
def _reflected(x: float, low: float, high: float) -> float:
    """`x` folded at both ends into [low, high]."""
    span = high - low
    if span <= 0:
        return low
    away = x - low
    turns = math.floor(away / span)
    rest = away - turns * span
    return low + rest if turns % 2 == 0 else high - rest


@jit(inline=True)
def _place(i: int, size: int, padding: int, aligned: int) -> int:
    """The element that stands for place `i` of an axis; -1 for none, as an empty axis has."""
    if 0 <= i < size:
        return i
    if padding == _ZEROS or size == 0:
        return -1
    if padding == _REFLECTION:
        edge = 0.0 if aligned else 0.5
        i = int(_reflected(float(i), -edge, size - 1 + edge))
    return min(max(i, 0), size - 1)


@jit(inline=True)
def _taps(
    coordinate: float, size: int, mode: int, padding: int, aligned: int
) -> tuple[tuple[int, int, int, int], tuple[float, float, float, float]]:
    """Four elements of an axis and their weights; those beyond the mode's taps weigh nothing."""
    x = (coordinate + 1) / 2 * (size - 1) if aligned else ((coordinate + 1) * size - 1) / 2
    # Far or undefined coordinates must not overflow the integers below.
    x = min(max(x, -1e9), 1e9) if x == x else -1e9
    if mode == _NEAREST:
        x = np.rint(x)
    edge = 0.0 if aligned else 0.5
    if padding == _REFLECTION and (x < -edge or x > size - 1 + edge):
        x = _reflected(x, -edge, size - 1 + edge)
    first = math.floor(x)
    t = x - first
    if mode == _NEAREST:
        return (_place(first, size, padding, aligned), -1, -1, -1), (1.0, 0.0, 0.0, 0.0)
    if mode == _LINEAR:
        left = _place(first, size, padding, aligned)
        right = _place(first + 1, size, padding, aligned)
        return (left, right, -1, -1), (1.0 - t, t, 0.0, 0.0)
    places = (
        _place(first - 1, size, padding, aligned),
        _place(first, size, padding, aligned),
        _place(first + 1, size, padding, aligned),
        _place(first + 2, size, padding, aligned),
    )
    a, u = -0.75, 1.0 - t
    weights = (
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * u - (a + 3)) * u * u + 1,
        ((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a,
    )
    return places, weights


@jit
def find_taps(
    grid: Array,
    places: Array,
    weights: Array,
    sizes: Array,
    mode: int,
    padding: int,
    aligned: int,
    tid: int,
    nt: int,
) -> None:
    """Which elements of a plane or volume each point is made of, and their shares in it.

    Args:
        grid: (points of all images, 2 or 3) coordinates in [-1, 1]: along W, H and D.
        places: Output (points, taps): elements counted from the first one; -1 for none.
        weights: Output (points, taps).
        sizes: D, H, W; a D of 0 stands for images.
        mode: 0 nearest, 1 linear, 2 cubic.
        padding: 0 zeros, 1 border, 2 reflection.
        aligned: Whether -1 and 1 are the centres of the outer pixels instead of their edges.
        tid: This thread.
        nt: All threads; they share the points.
    """
    height, width = sizes[1], sizes[2]
    taps = 1 << mode
    deep = taps if sizes[0] else 1
    total = grid.shape[0]
    for point in range(total * tid // nt, total * (tid + 1) // nt):
        ix, wx = _taps(grid[point, 0], width, mode, padding, aligned)
        iy, wy = _taps(grid[point, 1], height, mode, padding, aligned)
        iz, wz = (0, -1, -1, -1), (1.0, 0.0, 0.0, 0.0)
        if sizes[0]:
            iz, wz = _taps(grid[point, 2], sizes[0], mode, padding, aligned)
        if taps == 2 and deep == 1:
            # Images, linearly: what is found by number below lies in memory.
            for j, row, down in ((0, iy[0], wy[0]), (2, iy[1], wy[1])):
                above = row * width
                places[point, j] = above + ix[0] if row >= 0 and ix[0] >= 0 else -1
                places[point, j + 1] = above + ix[1] if row >= 0 and ix[1] >= 0 else -1
                weights[point, j], weights[point, j + 1] = down * wx[0], down * wx[1]
            continue
        tap = 0
        for k in range(deep):
            for j in range(taps):
                for i in range(taps):
                    exists = iz[k] >= 0 and iy[j] >= 0 and ix[i] >= 0
                    at = (iz[k] * height + iy[j]) * width + ix[i]
                    places[point, tap] = at if exists else -1
                    weights[point, tap] = wz[k] * wy[j] * wx[i]
                    tap += 1


@jit
def add_taps(
    x: Array,
    places: Array,
    weights: Array,
    y: Array,
    channels: int,
    points: int,
    tid: int,
    nt: int,
) -> None:
    """``y[n, c, p] = sum over t of weights[n, p, t] * x[n, c, places[n, p, t]]``.

    Args:
        x: Input (N, C, elements), flat.
        places: What `find_taps` found: (N x points, taps).
        weights: Likewise.
        y: Output (N, C, points), flat.
        channels: C.
        points: Of an image.
        tid: This thread.
        nt: All threads; they share the results.
    """
    planes, taps = y.size // points, places.shape[1]
    elements, together = x.size // planes, 1
    if taps == 4 and channels % _TOGETHER == 0:
        together = _TOGETHER
    count = planes // together * points
    begin, end = count * tid // nt, count * (tid + 1) // nt
    while begin < end:
        block = begin // points
        stop = min(end, (block + 1) * points)
        plane = block * together
        base, of_image = plane * elements, plane // channels * points
        for p in range(begin - block * points, stop - block * points):
            to, at = plane * points + p, np.uint64(of_image + p)
            if together == 1 or not _all_exist(places, at):
                for n in range(together):
                    beside = base + n * elements
                    value = _sum_of(x, beside, places, weights, at, taps)
                    y[np.uint64(to + n * points)] = value
                continue
            w0, w1, w2, w3 = weights[at, 0], weights[at, 1], weights[at, 2], weights[at, 3]
            i0, i1, i2, i3 = places[at, 0], places[at, 1], places[at, 2], places[at, 3]
            for n in range(_TOGETHER):
                beside = base + n * elements
                upper = w0 * x[np.uint64(beside + i0)] + w1 * x[np.uint64(beside + i1)]
                lower = w2 * x[np.uint64(beside + i2)] + w3 * x[np.uint64(beside + i3)]
                y[np.uint64(to + n * points)] = upper + lower
        begin = stop


@jit(inline=True)
def _all_exist(places: Array, at: Any) -> bool:
    """Whether all of the four elements do."""
    lowest: int = places[at, 0] | places[at, 1] | places[at, 2] | places[at, 3]
    return lowest >= 0


@jit(inline=True)
def _sum_of(x: Array, base: int, places: Array, weights: Array, p: Any, taps: int) -> Any:
    """One result; elements that do not exist are left out, whatever lies beside the plane.

    Args:
        x: Planes, flat.
        base: Where the plane begins.
        places: Of each pixel's taps in the plane, negative where there is none.
        weights: Of each pixel's taps.
        p: The pixel.
        taps: Of each pixel.
    """
    value = x.dtype.type(0)
    for tap in range(taps):
        at = places[p, tap]
        if at >= 0:
            value += weights[p, tap] * x[np.uint64(base + at)]
    return value


@kernel("GridSample", dtypes=ALL_FLOATS, since=16)
@through_float32
def grid_sample(b: Builder, node: Node, x: Operand, grid: Operand) -> Operand:
    """Images or volumes read at normalized coordinates."""
    attrs = node.attrs
    rank = x.ndim - 2
    mode = _MODES[attrs.get("mode", "linear")]
    if rank not in (2, 3) or grid.shape[-1] != rank or (rank == 3 and mode == _CUBIC):
        raise OperandError(
            f"Operation '{node.name}' (GridSample) cannot sample an input of shape "
            f"{list(x.shape)} at a grid of shape {list(grid.shape)} in mode '{attrs.get('mode')}'."
        )
    y = b.empty((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    if y.size:
        points = math.prod(grid.shape[1:-1])
        taps = (1 << mode) ** rank
        shape = grid.shape[0] * points, taps
        places, weights = b.empty(shape, np.int64), b.empty(shape, x.dtype)
        b.call(
            find_taps,
            b.view(grid, (grid.shape[0] * points, rank)),
            places,
            weights,
            b.constant(np.array([*([0] * (3 - rank)), *x.shape[2:]], np.int64)),
            mode,
            _PADDINGS[attrs.get("padding_mode", "zeros")],
            int(attrs.get("align_corners", 0)),
            work=places.size * 8,
        )
        b.call(
            add_taps,
            b.flat(x),
            places,
            weights,
            b.flat(y),
            x.shape[1],
            points,
            work=y.size * taps,
        )
    return y


@kernel("AffineGrid", dtypes={0: ALL_FLOATS, 1: INT64}, since=20)
@through_float32
def affine_grid(b: Builder, node: Node, theta: Operand, size: Operand) -> Operand:
    """The grid that GridSample reads for an affine map."""
    n, _, *spatial = ints(b, size)
    aligned = bool(node.attrs.get("align_corners", 0))
    shape = math.prod(spatial), len(spatial) + 1
    base = b.table(shape, theta.dtype, _pixels, aligned, theta.dtype, *spatial)
    y = product(b, base, theta, False, True)
    return b.view(y, (n, *spatial, len(spatial)))


def _pixels(aligned: bool, dtype: np.dtype[Any], *spatial: int) -> Array:
    """Coordinates of all pixels, the last axis first, and 1 behind them."""
    result: Array = np.ones((*spatial, len(spatial) + 1), dtype)
    for axis, count in enumerate(spatial):
        along = [count if axis == other else 1 for other in range(len(spatial))]
        result[..., len(spatial) - 1 - axis] = _centres(count, aligned, dtype).reshape(along)
    return result.reshape(-1, len(spatial) + 1)


def _centres(count: int, aligned: bool, dtype: np.dtype[Any]) -> Array:
    """Coordinates of the pixels along one axis, from -1 to 1."""
    if aligned:
        return np.linspace(-1, 1, count, dtype=dtype)
    return np.asarray((2 * np.arange(count) + 1) / count - 1, dtype=dtype)
