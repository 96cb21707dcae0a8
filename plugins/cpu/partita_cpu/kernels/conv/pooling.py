"""Pooling over windows and over whole channels."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.windows import Window, count_places, resolve
from partita.lowering.shapes.symbolic_size import evaluated
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.kernels.conv.pooling_windows import (
    divide_windows,
    max_planes,
    max_windows,
    max_windows_with_index,
    power_windows,
    row_sums,
    sum_planes,
)
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.movement.index_steps import checked_index, scatter_into
from partita_cpu.kernels.movement.pad import padded
from partita_cpu.kernels.movement.rearrange import ints
from partita_cpu.kernels.operator_table import ALL_FLOATS, ANY, INT64, DTypes, kernel

_MAX_TYPES: DTypes = ALL_FLOATS | frozenset({np.dtype(np.int8), np.dtype(np.uint8)})


_PLANE_BYTES = 1 << 17
"""Larger planes are folded row by row: a copy of each has to stay in the second-level cache."""


def _check_rank(node: Node) -> Reason | None:
    value = node.inputs[0]
    if value is None or value.shape is None or 3 <= len(value.shape) <= 5:
        return None
    return Reason(
        ReasonCode.UNSUPPORTED_SHAPE, f"input of {len(value.shape)} dimensions; takes 3 to 5"
    )


def _window(node: Node, x: Operand) -> Window:
    if not 3 <= x.ndim <= 5:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has an input of {x.ndim} dimensions; "
            "3 to 5 are possible."
        )
    kernel_shape = node.attrs["kernel_shape"]
    return resolve(node, x.shape[2:], kernel_shape, ceil_mode=bool(node.attrs.get("ceil_mode", 0)))


def _lowest(dtype: np.dtype[Any]) -> float | int:
    return -math.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _fold_planes(
    b: Builder,
    x: Operand,
    y: Operand,
    window: Window,
    kernel: Callable[..., None],
    start: float,
) -> bool:
    """Records a fold of small planes by whole vectors; returns whether it is done.

    Windows have unit steps and are centred on elements.

    Args:
        b: The builder.
        x: The images.
        y: The result.
        window: The window.
        kernel: The loop over a share of planes.
        start: What a fold begins with.
    """
    policy = b.options if isinstance(b.options, PrecisionPolicy) else None
    if policy is None or b.folding or x.ndim != 4 or x.shape != y.shape:
        return False
    (depth, down, across), (_, rows, columns) = window.kernel, window.size
    unit = set(window.stride) == set(window.dilation) == {1}
    centred = (*window.begin,) == (0, down // 2, across // 2)
    small = rows * columns * x.dtype.itemsize <= _PLANE_BYTES
    if not (unit and centred and depth == 1 and down % 2 == across % 2 == 1 and small):
        return False
    if min(rows, columns) < 2 or x.size < rows * columns * policy.threads:
        return False
    scratch = b.empty((policy.threads * rows * columns,), x.dtype)
    halves = down // 2, across // 2
    work = y.size * (down + across)
    flat = b.flat(x), b.flat(y), scratch
    b.call(kernel, *flat, start, rows, columns, *halves, work=work)
    return True


@kernel("MaxPool", dtypes=_MAX_TYPES, check=_check_rank)
@through_float32
def max_pool(b: Builder, node: Node, x: Operand) -> tuple[Operand | None, ...]:
    """The largest element of each window, and where it was if the second output is asked for."""
    window = _window(node, x)
    y = b.empty((*x.shape[:2], *window.out_shape), x.dtype)
    seen = window.trimmed
    table, lowest = b.constant(seen.table), _lowest(x.dtype)
    work = y.size * seen.taps
    if len(node.outputs) < 2 or node.outputs[1] is None:
        if y.size and not _fold_planes(b, x, y, seen, max_planes, lowest):
            b.call(max_windows, b.flat(x), b.flat(y), table, lowest, 0, work=work)
        return y, None
    index = b.empty(y.shape, np.int64)
    order = int(node.attrs.get("storage_order", 0))
    if y.size:
        flat = b.flat(x), b.flat(y), b.flat(index)
        b.call(max_windows_with_index, *flat, table, lowest, order, work=work)
    return y, index


@kernel("AveragePool", dtypes=ALL_FLOATS, check=_check_rank)
@through_float32
def average_pool(b: Builder, node: Node, x: Operand) -> Operand:
    """The mean of each window, with or without the padding under it."""
    window = _window(node, x)
    y = b.empty((*x.shape[:2], *window.out_shape), x.dtype)
    if y.size:
        seen = window.trimmed
        work = y.size * seen.taps
        if not _fold_planes(b, x, y, seen, sum_planes, 0.0):
            flat = b.flat(x), b.flat(y)
            b.call(power_windows(0), *flat, b.constant(seen.table), 0.0, 0, work=work)
        include = bool(node.attrs.get("count_include_pad", 0))
        counts = [
            b.table((window.out[axis],), np.int64, count_places, include, *window.along(axis))
            for axis in range(3)
        ]
        b.call(divide_windows, b.flat(y), *counts)
    return y


@kernel("LpPool", dtypes=ALL_FLOATS, check=_check_rank, since=2)
@through_float32
def lp_pool(b: Builder, node: Node, x: Operand) -> Operand:
    """The p-norm of each window."""
    window = _window(node, x).trimmed
    p = int(node.attrs.get("p", 2))
    y = b.empty((*x.shape[:2], *window.out_shape), x.dtype)
    if y.size:
        work = y.size * window.taps
        tensors = b.flat(x), b.flat(y), b.constant(window.table)
        b.call(power_windows(p), *tensors, 0.0, p, work=work)
        _root(b, y, p)
    return y


def _root(b: Builder, y: Operand, p: int) -> None:
    """``y ** (1 / p)`` in place."""
    if p == 2:
        b.call_numpy(np.sqrt, y, y)
    elif p != 1:
        b.call_numpy(np.power, y, y.dtype.type(1 / p), y)


@kernel("GlobalAveragePool", "GlobalLpPool", dtypes=ALL_FLOATS)
@through_float32
def global_sum_pool(b: Builder, node: Node, x: Operand) -> Operand:
    """The mean, or the p-norm, of each channel."""
    y = b.empty((*x.shape[:2], *(1 for _ in x.shape[2:])), x.dtype)
    mean = node.op_type == "GlobalAveragePool"
    p = 0 if mean else int(node.attrs.get("p", 2))
    if y.size:
        count = evaluated(operator.truediv, x.size, y.size) if mean else 1.0
        b.call(row_sums, b.flat(x), b.flat(y), p, count)
        if not mean:
            _root(b, y, p)
    return y


@kernel("GlobalMaxPool", dtypes=ALL_FLOATS)
@through_float32
def global_max_pool(b: Builder, node: Node, x: Operand) -> Operand:
    """The largest element of each channel."""
    y = b.empty((*x.shape[:2], *(1 for _ in x.shape[2:])), x.dtype)
    b.call_numpy(_row_maxima, b.view(x, (*x.shape[:2], math.prod(x.shape[2:]))), y)
    return y


def _row_maxima(x: Array, y: Array) -> None:
    np.max(x, axis=2, out=y.reshape(x.shape[:2]), initial=-math.inf)


@kernel("MaxUnpool", dtypes={0: ANY, 1: INT64, 2: INT64})
def max_unpool(
    b: Builder, node: Node, x: Operand, index: Operand, shape: Operand | None = None
) -> Operand:
    """Zeros with the elements of x at the places that MaxPool's second output names."""
    rank = x.ndim - 2
    kernel_shape = node.attrs["kernel_shape"]
    strides = node.attrs.get("strides") or [1] * rank
    pads = node.attrs.get("pads") or [0] * 2 * rank
    out = [
        (n - 1) * s + k - pads[i] - pads[i + rank]
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel_shape, strict=True))
    ]
    y = b.empty([*x.shape[:2], *out], x.dtype)
    places = checked_index(b, index, y.size)
    b.call_numpy(_clear, y)
    scatter_into(b, x, y, places)
    if shape is None:
        return y
    # The places count in the smallest output; what a given shape has beyond it is empty.
    after = [want - n for want, n in zip(ints(b, shape), y.shape, strict=True)]
    return padded(b, y, [0] * y.ndim, after, b.constant(np.zeros(1, y.dtype)))


def _clear(y: Array) -> None:
    y.fill(0)
