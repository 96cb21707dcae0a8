"""Operators that pad or crop: boxes that are copied, or indices that fold again and again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.query import Reason
from partita.errors import OperandError
from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.axes import distinct_axes
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.kernel_table import refused_choice
from partita.lowering.shapes.symbolic_size import found_equal
from partita_cpu.kernels.movement.index_steps import taken
from partita_cpu.kernels.movement.rearrange import axes_of, ints
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.operator_table import ANY, INDICES, INT64, kernel


def _check_mode(node: Node) -> Reason | None:
    return refused_choice(node, "mode", "constant", "reflect", "edge", "wrap")


@kernel("Pad", dtypes={0: ANY, 1: INT64, 3: INDICES}, check=_check_mode, since=2)
def pad(
    b: Builder,
    node: Node,
    x: Operand,
    pads: Operand | None = None,
    value: Operand | None = None,
    axes: Operand | None = None,
) -> Operand:
    """All four modes; negative pads crop."""
    given: list[int] = node.attrs["pads"] if pads is None else ints(b, pads)
    along = axes_of(b, node, axes, x.ndim)
    along = list(range(x.ndim)) if along is None else along
    before, after = [0] * x.ndim, [0] * x.ndim
    for k, axis in enumerate(along):
        before[axis], after[axis] = given[k], given[k + len(along)]
    mode = node.attrs.get("mode", "constant")
    if mode == "constant":
        if value is None:
            value = b.constant(np.array(node.attrs.get("value", 0)).astype(x.dtype))
        return padded(b, x, before, after, value)
    y = x
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low or high:
            y = _folded(b, node, y, axis, mode, low, high)
    return y


def padded(
    b: Builder, x: Operand, before: Sequence[int], after: Sequence[int], value: Operand
) -> Operand:
    """`x` with constant borders; negative borders cut off.

    Borders that sizes tell are asked whether there are none only where that is so at hand.
    """
    shape = [n + lo + hi for n, lo, hi in zip(x.shape, before, after, strict=True)]
    if all(found_equal(border, 0) for border in (*before, *after)):
        return b.view(x, shape)
    y = b.empty(shape, x.dtype)
    kept = [n + min(0, lo) + min(0, hi) for n, lo, hi in zip(x.shape, before, after, strict=True)]
    if any(n <= 0 for n in kept) or not all(map(found_equal, kept, shape)):
        copy_box(b, Box(b.flat(value), (0,)), Box(y, (1,)), (y.size,))
    if all(n > 0 for n in kept):
        source, target = strides_of(x.shape), strides_of(shape)
        start = sum(-min(0, lo) * s for lo, s in zip(before, source, strict=True))
        place = sum(max(lo, 0) * s for lo, s in zip(before, target, strict=True))
        copy_box(b, Box(x, source, start), Box(y, target, place), kept)
    return y


def _folded(
    b: Builder, node: Node, x: Operand, axis: int, mode: str, low: int, high: int
) -> Operand:
    """`x` with borders along one axis that repeat elements of it; negative borders cut off.

    Args:
        b: The builder.
        node: The operation.
        x: The tensor.
        axis: The axis.
        mode: "reflect", "edge" or "wrap".
        low: Elements before the first one.
        high: Elements behind the last one.
    """
    size = x.shape[axis]
    kept, left, right = size + min(low, 0) + min(high, 0), max(low, 0), max(high, 0)
    if kept < 1 and (left or right):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has pads {low} and {high}, which leave "
            f"nothing of the {size} elements along axis {axis} to repeat."
        )
    longest = kept - 1 if mode == "reflect" else kept
    if kept < 1 or (mode != "edge" and max(left, right) > longest):  # the border folds again
        return taken(b, x, axis, size + low + high, _folded_index, mode, size, low, high)
    y = b.empty((*x.shape[:axis], left + kept + right, *x.shape[axis + 1 :]), x.dtype)
    first = max(-low, 0)
    begins, step = {
        "edge": ((first, first + kept - 1), 0),
        "wrap": ((first + kept - left, first), 1),
        "reflect": ((first + left, first + kept - 2), -1),
    }[mode]
    runs = ((begins[0], step, left), (first, 1, kept), (begins[1], step, right))
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    place = 0
    for begin, by, count in runs:
        copy_box(
            b,
            Box(x, (size * inner, by * inner, 1), begin * inner),
            Box(y, (y.shape[axis] * inner, inner, 1), place * inner),
            (outer, count, inner),
        )
        place += count
    return y


def _folded_index(mode: str, n: int, low: int, high: int) -> np.ndarray[Any, Any]:
    """For each element of a padded dimension, the element of the unpadded one that it repeats."""
    first, kept = max(0, -low), n + min(low, 0) + min(high, 0)
    place = np.arange(-max(low, 0), kept + max(high, 0))
    if mode == "edge":
        index = np.clip(place, 0, kept - 1)
    elif mode == "wrap":
        index = place % kept
    else:
        period = max(1, 2 * (kept - 1))
        index = place % period
        index = np.minimum(index, period - index) if kept > 1 else np.zeros_like(place)
    return first + index


@kernel("CenterCropPad", dtypes={0: ANY, 1: INDICES}, since=18)
def center_crop_pad(b: Builder, node: Node, x: Operand, shape: Operand) -> Operand:
    """Cut or zero-padded to a size, evenly on both sides; the odd element goes to the end."""
    given = node.attrs.get("axes")
    axes = range(x.ndim) if given is None else distinct_axes(node, given, x.ndim)
    before, after = [0] * x.ndim, [0] * x.ndim
    for axis, size in zip(axes, ints(b, shape), strict=True):
        extra = size - x.shape[axis]
        before[axis] = math.trunc(extra / 2)
        if extra < 0:
            before[axis] = -((-extra) // 2)
        after[axis] = extra - before[axis]
    return padded(b, x, before, after, b.constant(np.zeros(1, x.dtype)))
