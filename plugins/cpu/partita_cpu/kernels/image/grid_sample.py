"""GridSample and AffineGrid: images read at places that another tensor names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.errors import CompileError
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
def sample_grid(
    x: Array,
    grid: Array,
    y: Array,
    sizes: Array,
    mode: int,
    padding: int,
    aligned: int,
    tid: int,
    nt: int,
) -> None:
    """``y[n, c, p] = x[n, c]`` at the coordinates ``grid[n, p]``.

    Args:
        x: Input (N, C, D, H, W), flat.
        grid: (N, points, 2 or 3) coordinates in [-1, 1]: along W, H and D.
        y: Output (N, C, points), flat.
        sizes: C, D, H, W; a D of 0 stands for images.
        mode: 0 nearest, 1 linear, 2 cubic.
        padding: 0 zeros, 1 border, 2 reflection.
        aligned: Whether -1 and 1 are the centres of the outer pixels instead of their edges.
        tid: This thread.
        nt: All threads; they share the points.
    """
    channels, height, width = sizes[0], sizes[2], sizes[3]
    depth = max(sizes[1], 1)
    points = grid.shape[1]
    taps = 1 << mode
    deep = taps if sizes[1] else 1
    total = grid.shape[0] * points
    for point in range(total * tid // nt, total * (tid + 1) // nt):
        n = point // points
        p = point - n * points
        ix, wx = _taps(grid[n, p, 0], width, mode, padding, aligned)
        iy, wy = _taps(grid[n, p, 1], height, mode, padding, aligned)
        iz, wz = (0, -1, -1, -1), (1.0, 0.0, 0.0, 0.0)
        if sizes[1]:
            iz, wz = _taps(grid[n, p, 2], depth, mode, padding, aligned)
        for c in range(channels):
            plane = (n * channels + c) * depth
            value = 0.0
            for k in range(deep):
                for j in range(taps):
                    for i in range(taps):
                        if iz[k] >= 0 and iy[j] >= 0 and ix[i] >= 0:
                            at = ((plane + iz[k]) * height + iy[j]) * width + ix[i]
                            value += wz[k] * wy[j] * wx[i] * x[at]
            y[(n * channels + c) * points + p] = value


@kernel("GridSample", dtypes=ALL_FLOATS, since=16)
@through_float32
def grid_sample(b: Builder, node: Node, x: Operand, grid: Operand) -> Operand:
    """Images or volumes read at normalized coordinates."""
    attrs = node.attrs
    rank = x.ndim - 2
    mode = _MODES[attrs.get("mode", "linear")]
    if rank not in (2, 3) or grid.shape[-1] != rank or (rank == 3 and mode == _CUBIC):
        raise CompileError(
            f"Operation '{node.name}' (GridSample) cannot sample an input of shape "
            f"{list(x.shape)} at a grid of shape {list(grid.shape)} in mode '{attrs.get('mode')}'."
        )
    y = b.empty((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    if y.size:
        sizes = [x.shape[1], *([0] * (3 - rank)), *x.shape[2:]]
        points = math.prod(grid.shape[1:-1])
        b.call(
            sample_grid,
            b.flat(x),
            b.view(grid, (grid.shape[0], points, rank)),
            b.flat(y),
            b.constant(np.array(sizes, np.int64)),
            mode,
            _PADDINGS[attrs.get("padding_mode", "zeros")],
            int(attrs.get("align_corners", 0)),
            work=y.size * 8,
        )
    return y


@kernel("AffineGrid", dtypes={0: ALL_FLOATS, 1: INT64}, since=20)
@through_float32
def affine_grid(b: Builder, node: Node, theta: Operand, size: Operand) -> Operand:
    """The grid that GridSample reads for an affine map."""
    n, _, *spatial = ints(b, size)
    aligned = bool(node.attrs.get("align_corners", 0))
    shape = math.prod(spatial), len(spatial) + 1
    base = b.table(shape, theta.dtype, _pixels, tuple(spatial), aligned, theta.dtype)
    y = product(b, base, theta, False, True)
    return b.view(y, (n, *spatial, len(spatial)))


def _pixels(spatial: tuple[int, ...], aligned: bool, dtype: np.dtype[Any]) -> Array:
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
