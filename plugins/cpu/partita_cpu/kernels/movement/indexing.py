"""Gather and scatter: elements read from, or written to, places that a tensor of indices names."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import InputError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.shapes.symbolic_size import holds_sizes, integers
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_wrappers import Checked, ItemSized
from partita_cpu.kernels.movement.index_steps import (
    REDUCTIONS,
    checked_index,
    gather_into,
    gathered,
    out_of_range,
    refuse_index,
    scatter_into,
)
from partita_cpu.kernels.movement.strided_copy import MOVABLE, copy_box
from partita_cpu.kernels.operator_table import ANY, INDICES, INT64, NUMBERS, kernel


@kernel("Gather", dtypes={0: MOVABLE, 1: INDICES})
def gather(b: Builder, node: Node, x: Operand, index: Operand) -> Operand:
    """Slices along one axis; the indices' shape takes the axis' place."""
    axis = axis_of(node, node.attrs.get("axis", 0), x.ndim)
    limit = x.shape[axis]
    checked = checked_index(b, index, limit)
    spacing = None
    if checked.const is not None and type(limit) is int and not b.folding:
        spacing = _spacing(checked.const)
    if spacing is None:
        return gathered(b, x, checked, axis)
    shape = [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    start, steps = spacing
    if index.size == limit and start == 0 and _counts_up(index.shape, steps):
        return b.view(x, shape)
    y = b.empty(shape, x.dtype)
    source = Box(x, [limit * inner, *(step * inner for step in steps), 1], start * inner)
    sizes = [outer, *index.shape, inner]
    copy_box(b, source, Box(y, strides_of(sizes)), sizes)
    return y


def _counts_up(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether indices with these steps count up in row-major order."""
    rows = zip(shape, steps, strides_of(shape), strict=True)
    return all(size == 1 or step == stride for size, step, stride in rows)


def _spacing(index: Array) -> tuple[int, list[int]] | None:
    """The first index, and how much each is above the one before it along each dimension.

    Returns:
        ``None`` if the indices are not evenly spaced, or there are none.
    """
    if not index.size:
        return None
    origin = (0,) * index.ndim
    start, steps = int(index[origin]), []
    found = np.full((), start, np.int64)
    for axis, size in enumerate(index.shape):
        second = tuple(int(k == axis) for k in range(index.ndim))
        steps.append(int(index[second]) - start if size > 1 else 0)
        found = found[..., None] + steps[-1] * np.arange(size)
    return (start, steps) if np.array_equal(found, index) else None


@kernel("GatherElements", dtypes={0: MOVABLE, 1: INDICES})
def gather_elements(b: Builder, node: Node, x: Operand, index: Operand) -> Operand:
    """One element of `x` for each index, which replaces the coordinate along the axis."""
    places = _element_places(b, node, x, index)
    y = b.empty(index.shape, x.dtype)
    gather_into(b, b.flat(x), y, places, 0)
    return y


@kernel("GatherND", dtypes={0: MOVABLE, 1: INDICES})
def gather_nd(b: Builder, node: Node, x: Operand, index: Operand) -> Operand:
    """Slices of `x` at tuples of coordinates, within each of the leading batch dimensions."""
    batch = node.attrs.get("batch_dims", 0)
    depth = batch + index.shape[-1]
    places = _tuple_places(b, x, index, batch)
    y = b.empty([*index.shape[:-1], *x.shape[depth:]], x.dtype)
    rows = b.view(x, (math.prod(x.shape[:depth]), math.prod(x.shape[depth:])))
    gather_into(b, rows, y, places, 0)
    return y


def _check_reduction(node: Node) -> Reason | None:
    reduction = node.attrs.get("reduction", "none")
    if reduction == "none":
        return None
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    if reduction not in REDUCTIONS:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"reduction is '{reduction}'")
    if dtype is not None and dtype not in NUMBERS:
        return Reason(ReasonCode.UNSUPPORTED_DTYPE, f"{dtype} with reduction '{reduction}'")
    return None


@kernel(
    "Scatter",
    "ScatterElements",
    dtypes={0: MOVABLE, 1: INDICES, 2: MOVABLE},
    check=_check_reduction,
)
def scatter_elements(
    b: Builder, node: Node, x: Operand, index: Operand, updates: Operand
) -> Operand:
    """A copy of `x` with single elements replaced, or combined with what is there."""
    places = _element_places(b, node, x, index)
    return _scatter(b, node, x, places, updates, 1)


@kernel("ScatterND", dtypes={0: MOVABLE, 1: INDICES, 2: MOVABLE}, check=_check_reduction)
def scatter_nd(b: Builder, node: Node, x: Operand, index: Operand, updates: Operand) -> Operand:
    """A copy of `x` with slices at tuples of coordinates replaced, or combined."""
    depth = index.shape[-1]
    places = _tuple_places(b, x, index, 0)
    return _scatter(b, node, x, places, updates, math.prod(x.shape[depth:]))


def _scatter(
    b: Builder, node: Node, x: Operand, places: Operand, updates: Operand, inner: int
) -> Operand:
    """Records a copy in which some slices are replaced, or combined with others.

    Args:
        b: The builder.
        node: The operation.
        x: What is copied.
        places: Where the slices begin, in units of them.
        updates: The slices.
        inner: Elements of a slice.
    """
    y = b.empty(x.shape, x.dtype)
    copy_box(b, Box(x, [1]), Box(y, [1]), [x.size])
    if y.size:
        reduction = node.attrs.get("reduction", "none")
        scatter_into(b, updates, y, places, inner, reduction)
    return y


def _element_places(b: Builder, node: Node, x: Operand, index: Operand) -> Operand:
    """For each index the place in flat `x` whose coordinate along the axis is the index."""
    axis = axis_of(node, node.attrs.get("axis", 0), x.ndim)
    limit = x.shape[axis]
    checked = index if index.const is None else checked_index(b, index, limit)
    steps = tuple(strides_of(x.shape))
    rows = tuple(1 if k == axis else size for k, size in enumerate(index.shape))
    base = b.table((math.prod(rows),), np.int64, _beginnings, *rows, *steps)
    is_known = base.const is not None and not holds_sizes(base.const)
    if checked.const is not None and base.const is not None and is_known and not b.folding:
        known = np.multiply(checked.const, steps[axis], out=np.empty(index.shape, np.int64))
        return b.constant(np.add(known, base.const.reshape(rows), out=known))
    places = b.empty(index.shape, np.int64)
    if places.size:
        check = Checked(places_along_axis, functools.partial(refuse_index, b.node.name))
        found = b.flat(checked), b.flat(places), b.empty((1,), np.int64), limit
        sizes = index.shape[axis], math.prod(index.shape[axis + 1 :]), steps[axis]
        b.call(check, *found, base, *sizes)
    return places


def _beginnings(*sizes: int) -> Array:
    """Where elements lie whose coordinates count up to a shape: its sizes, then the steps."""
    half = len(sizes) // 2
    base = np.zeros(1, np.int64)
    for size, step in zip(sizes[:half], sizes[half:], strict=True):
        if size != 1:
            base = (base[:, None] + np.arange(size) * step).reshape(-1)
    return base


@jit
def places_along_axis(
    index: Array,
    places: Array,
    wrong: Array,
    limit: int,
    base: Array,
    size: int,
    inner: int,
    step: int,
    tid: int,
    nt: int,
) -> None:
    """``places[o, j, i] = index[o, j, i] * step + base[o, i]`` for (outer, size, inner) of them.

    Args:
        index: (outer, size, inner) indices along an axis, flat; negative ones count from the end.
        places: int64, as index.
        wrong: int64 [1]; an index that is out of range.
        limit: Elements along the axis.
        base: (outer, inner) places of the axis' first elements, flat.
        size: Indices along the axis.
        inner: Elements of all axes behind it.
        step: Places from one index to the next.
        tid: This thread.
        nt: All threads; they share rows of inner elements.

    Raises:
        ValueError: An index is out of range.
    """
    rows = index.size // inner
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        start, under = row * inner, row // size * inner
        for i in range(inner):
            place = np.int64(index[start + i])
            if place < -limit or place >= limit:
                wrong[0] = place
                raise ValueError("an index is out of range")
            place = place + limit if place < 0 else place
            places[start + i] = place * step + base[under + i]


def _tuple_places(b: Builder, x: Operand, index: Operand, batch: int) -> Operand:
    """For each coordinate tuple the slice it names, counted over all leading dimensions."""
    limits = x.shape[batch : batch + index.shape[-1]]
    batches, count = math.prod(index.shape[:batch]), math.prod(index.shape[batch:-1])
    out = b.empty(index.shape[:-1], np.int64)
    with b.if_any(out.size) as is_any:
        if is_any:
            base = b.table((batches,), np.int64, _multiples, batches, math.prod(limits))
            check = Checked(places_of_tuples, functools.partial(_refuse_tuple, b.node.name))
            wrong = b.empty((2,), np.int64)
            sizes = b.constant(integers(limits)), count
            b.call(check, b.flat(index), base, b.flat(out), wrong, *sizes)
    return out


def _multiples(count: int, step: int) -> Array:
    """A number's multiples, from 0 on."""
    return np.arange(count, dtype=np.int64) * step


@jit
def places_of_tuples(
    index: Array,
    base: Array,
    out: Array,
    wrong: Array,
    limits: Array,
    count: int,
    tid: int,
    nt: int,
) -> None:
    """Numbers the slices that tuples of coordinates name, or writes a bad one to `wrong`.

    Args:
        index: (batches, count, coordinates) integers, flat; negative ones count from the end.
        base: int64 (batches); the number of a batch's first slice.
        out: int64 (batches, count), flat.
        wrong: int64 [2]; a coordinate that is out of range, and how many places it chooses from.
        limits: int64 [coordinates]; how many places each chooses from.
        count: Tuples of a batch.
        tid: This thread.
        nt: All threads.

    Raises:
        ValueError: A coordinate is out of range.
    """
    depth = limits.size
    for j in range(out.size * tid // nt, out.size * (tid + 1) // nt):
        number = np.int64(0)
        for k in range(depth):
            place, limit = np.int64(index[j * depth + k]), limits[k]
            if place < -limit or place >= limit:
                wrong[0] = place
                wrong[1] = limit
                raise ValueError("an index is out of range")
            number = number * limit + (place + limit if place < 0 else place)
        out[j] = base[j // count] + number


def _refuse_tuple(
    name: str, index: Array, base: Array, out: Array, wrong: Array, *sizes: Any
) -> NoReturn:
    raise out_of_range(name, int(wrong[0]), int(wrong[1]))


@kernel("OneHot", dtypes={0: NUMBERS, 1: NUMBERS, 2: ANY})
def one_hot(b: Builder, node: Node, index: Operand, depth: Operand, values: Operand) -> Operand:
    """A new axis that is "on" at each index and "off" elsewhere; all off for indices beyond."""
    size = int(b.value(depth).ravel()[0])
    axis = axis_of(node, node.attrs.get("axis", -1), index.ndim + 1)
    y = b.empty([*index.shape[:axis], size, *index.shape[axis:]], values.dtype)
    outer, inner = math.prod(index.shape[:axis]), math.prod(index.shape[axis:])
    if index.dtype.kind in "iu" and values.shape == (2,) and y.size:
        b.call(_mark_bits, values, b.flat(y), b.flat(index), size, inner)
    else:
        whole = b.view(index, (outer, 1, inner)), values, b.view(y, (outer, size, inner))
        b.call_numpy(_mark, *whole)
    return y


@jit
def mark_rows(
    values: Array, y: Array, index: Array, depth: int, inner: int, tid: int, nt: int
) -> None:
    """``y[o, d, i]`` is the second value where ``index[o, i]`` is d, elsewhere the first one.

    Args:
        values: The two values.
        y: (outer, depth, inner) elements, flat.
        index: (outer, inner) indices, flat; negative ones count from the end.
        depth: Size of the new axis.
        inner: Elements behind it.
        tid: This thread.
        nt: All threads; they share rows of y.
    """
    rows = y.size // inner
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        o = row // depth
        for i in range(inner):
            place = np.int64(index[o * inner + i])
            if place < 0:
                place += depth
            y[row * inner + i] = values[1] if place == row - o * depth else values[0]


_mark_bits = ItemSized(mark_rows, 2)


def _mark(index: Array, values: Array, y: Array) -> None:
    depth = y.shape[1]
    places = index.astype(np.int64)
    places = np.where(places < 0, places + depth, places)
    y[...] = np.where(places == np.arange(depth)[:, None], values[1], values[0])


@kernel("ReverseSequence", dtypes={0: ANY, 1: INT64})
def reverse_sequence(b: Builder, node: Node, x: Operand, lengths: Operand) -> Operand:
    """Each sequence of the batch backwards, as far as its length says."""
    time_axis = int(node.attrs.get("time_axis", 0))
    rows, inner = x.shape[0] * x.shape[1], math.prod(x.shape[2:])
    index = b.empty(x.shape[:2], np.int64)
    b.call_numpy(_reversed_rows, lengths, index, time_axis, node.name)
    y = b.empty(x.shape, x.dtype)
    gather_into(b, b.view(x, (rows, inner)), y, index, 0)
    return y


def _reversed_rows(lengths: Array, index: Array, time_axis: int, name: str) -> None:
    """For each (time, batch), or (batch, time), the row that takes its place."""
    steps = index.shape[time_axis]
    if lengths.size and (lengths.min() < 0 or lengths.max() > steps):
        raise InputError(
            f"Operation '{name}': sequence lengths are {lengths.min()} to {lengths.max()}, "
            f"but sequences have {steps} steps."
        )
    time, batch = np.arange(steps)[:, None], np.arange(lengths.size)
    turned = np.where(time < lengths, lengths - 1 - time, time)
    if time_axis == 0:
        index[...] = turned * lengths.size + batch
    else:
        index[...] = (turned + batch * steps).T
