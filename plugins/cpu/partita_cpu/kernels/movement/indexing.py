"""Gather and scatter: elements read from, or written to, places that a tensor of indices names.

Indices are brought to one form first: int64, counted from 0, within bounds; a wrong one is an
error, never a wrong read. That is one small step, which folds for constant indices. The
copy itself then trusts them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import InputError, OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.shapes.symbolic_size import Number, Size, holds_sizes
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_wrappers import Checked, ItemSized
from partita_cpu.kernels.movement.rearrange import axis_of
from partita_cpu.kernels.movement.strided_copy import MOVABLE, copy_box
from partita_cpu.kernels.operator_table import ANY, INDICES, INT64, NUMBERS, kernel

_REDUCTIONS = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@jit
def gather_rows(
    x: Array, y: Array, index: Array, outer: int, axis: int, inner: int, tid: int, nt: int
) -> None:
    """``y[o, j, :] = x[o, index[j], :]`` for x of (outer, axis, inner) elements."""
    count = index.size
    rows = outer * count
    if inner == 1:
        row, stop = rows * tid // nt, rows * (tid + 1) // nt
        while row < stop:
            o = row // count
            start, end = row - o * count, min(count, stop - o * count)
            source, target = o * axis, o * count
            for j in range(start, end):
                y[target + j] = x[np.uint64(source + index[j])]
            row = target + end
        return
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        o = row // count
        source = (o * axis + index[row - o * count]) * inner
        target = row * inner
        for i in range(inner):
            y[target + i] = x[np.uint64(source + i)]


@jit
def gather_pixels(
    x: Array,
    y: Array,
    down: Array,
    across: Array,
    height: int,
    width: int,
    inner: int,
    tid: int,
    nt: int,
) -> None:
    """``y[o, i, j, :] = x[o, down[i], across[j], :]`` for x of (outer, height, width, inner)."""
    out_height, out_width = down.size, across.size
    line = out_width * inner
    lines = y.size // line
    begin, end = lines * tid // nt, lines * (tid + 1) // nt
    i = begin % out_height
    for row in range(begin, end):
        target = row * line
        if row > begin and i > 0 and down[i] == down[i - 1]:
            above = y[target - line : target]
            same = y[target : target + line]
            for k in range(line):
                same[k] = above[k]
        else:
            source = (row // out_height * height + down[i]) * width * inner
            if inner == 1:
                for j in range(out_width):
                    y[np.uint64(target + j)] = x[np.uint64(source + across[j])]
            else:
                for j in range(out_width):
                    at, to = source + across[j] * inner, target + j * inner
                    for k in range(inner):
                        y[np.uint64(to + k)] = x[np.uint64(at + k)]
        i += 1
        if i == out_height:
            i = 0


@jit
def scatter_rows(
    updates: Array, y: Array, index: Array, inner: int, rows: int, tid: int, nt: int
) -> None:
    """``y[index[j], :] = updates[j, :]`` in the order of j; each thread owns a range of rows."""
    low = rows * tid // nt
    high = rows * (tid + 1) // nt
    for j in range(index.size):
        row = index[j]
        if low <= row < high:
            for i in range(inner):
                y[np.uint64(row * inner + i)] = updates[j * inner + i]


_gather_bits = ItemSized(gather_rows, 2)
_scatter_bits = ItemSized(scatter_rows, 2)
_gather_pixel_bits = ItemSized(gather_pixels, 2)


def normalize_index(index: Array, out: Array, limit: int, name: str) -> None:
    """Write the indices to `out`, negative ones counted from the end.

    Raises:
        InputError: One is outside ``-limit .. limit - 1``.
    """
    np.copyto(out, index)
    if out.size == 0:
        return
    low, high = out.min(), out.max()
    if low < -limit or high >= limit:
        raise _out_of_range(name, low if low < -limit else high, limit)
    if low < 0:
        out[out < 0] += limit


def _normalized(places: tuple[int, ...], shape: tuple[int, ...], limit: int, name: str) -> Array:
    """Indices of a shape, as :func:`normalize_index` writes them."""
    out = np.empty(shape, np.int64)
    normalize_index(np.array(places, np.int64).reshape(shape), out, limit, name)
    return out


@jit
def normalize_indices(
    index: Array, out: Array, wrong: Array, limit: int, tid: int, nt: int
) -> None:
    """Writes indices to `out`, negative ones counted from the end, or a bad one to `wrong`."""
    for i in range(index.size * tid // nt, index.size * (tid + 1) // nt):
        place = np.int64(index[i])
        if place < -limit or place >= limit:
            wrong[0] = place
            raise ValueError("an index is out of range")
        out[i] = place + limit if place < 0 else place


def _refuse(name: str, index: Array, out: Array, wrong: Array, limit: int) -> NoReturn:
    raise _out_of_range(name, int(wrong[0]), limit)


def _out_of_range(name: str, wrong: int, limit: int) -> InputError:
    allowed = f"allowed are {-limit} to {limit - 1}" if limit else "there is none to take"
    return InputError(
        f"Operation '{name}': index {wrong} is out of range for a dimension of size {limit}; "
        f"{allowed}."
    )


def checked_index(b: Builder, index: Operand, limit: Number) -> Operand:
    """The indices as int64 from 0 to ``limit - 1``; checked at run time, or now if constant."""
    out = b.empty(index.shape, np.int64)
    if index.const is not None and type(limit) is Size and not holds_sizes(index.const):
        places = tuple(index.const.reshape(-1).tolist())
        sizes = index.shape, np.int64
        return b.computed(*sizes, _normalized, places, index.shape, limit, b.node.name)
    if index.const is not None and not b.folding:
        elements = np.empty(index.shape, np.int64)
        normalize_index(index.const, elements, limit, b.node.name)
        return b.constant(elements)
    check = Checked(normalize_indices, functools.partial(_refuse, b.node.name))
    b.call(check, b.flat(index), b.flat(out), b.empty((1,), np.int64), limit)
    return out


def taken(
    b: Builder, x: Operand, axis: int, count: int, index_of: Callable[..., Array], *args: Any
) -> Operand:
    """Slices of `x` along `axis` at as many indices, which a function computes of sizes.

    Args:
        b: Records it.
        x: What slices are taken of.
        axis: Along which.
        count: How many slices.
        index_of: Gives int64 [count]; a function that is known by itself.
        args: Its arguments: sizes and other constants.

    Raises:
        OperandError: One is out of bounds.
    """
    return gathered(b, x, table_of_indices(b, x, axis, count, index_of, *args), axis)


def taken_pixels(b: Builder, x: Operand, axis: int, down: Operand, across: Operand) -> Operand:
    """As `taken` along an axis and the next one, at indices that `table_of_indices` made.

    Args:
        b: Records it.
        x: What is taken of.
        axis: The first of the two axes.
        down: Indices along it.
        across: Indices along the next one.
    """
    counts = down.shape[0], across.shape[0]
    y = b.empty([*x.shape[:axis], *counts, *x.shape[axis + 2 :]], x.dtype)
    if y.size:
        numbers = *x.shape[axis : axis + 2], math.prod(x.shape[axis + 2 :])
        b.call(_gather_pixel_bits, b.flat(x), b.flat(y), down, across, *numbers)
    return y


def table_of_indices(
    b: Builder, x: Operand, axis: int, count: int, index_of: Callable[..., Array], *args: Any
) -> Operand:
    """As many indices along an axis, which a function computes of sizes.

    Raises:
        OperandError: One is out of bounds.
    """
    where = x.shape[axis], axis, f"'{b.node.name}' ({b.node.model_kind})"
    return b.table((count,), np.int64, _within, *where, index_of, *args)


def _within(limit: int, axis: int, node: str, index_of: Callable[..., Array], *args: Any) -> Array:
    """What a function computes, if it is indices of an axis of so many elements."""
    index = index_of(*args).astype(np.int64)
    if index.size and not 0 <= index.min() <= index.max() < limit:
        raise OperandError(
            f"Operation {node} would read elements {index.min()} to {index.max()} of {limit} "
            f"along axis {axis}."
        )
    return index


def gathered(b: Builder, x: Operand, index: Operand, axis: int) -> Operand:
    """Slices of `x` along `axis` at checked int64 indices, whose shape takes the axis' place."""
    y = b.empty([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]], x.dtype)
    _gather(b, x, y, index, axis)
    return y


def _gather(b: Builder, x: Operand, y: Operand, index: Operand, axis: int) -> None:
    if y.size == 0:
        return
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    b.call(_gather_bits, b.flat(x), b.flat(y), b.flat(index), outer, x.shape[axis], inner)


def scatter_flat(b: Builder, updates: Operand, y: Operand, places: Operand) -> None:
    """Write each element of `updates` to its checked place in flat `y`."""
    if updates.size:
        b.call(_scatter_bits, b.flat(updates), b.flat(y), b.flat(places), 1, y.size)


@kernel("Gather", dtypes={0: MOVABLE, 1: INDICES})
def gather(b: Builder, node: Node, x: Operand, index: Operand) -> Operand:
    """Slices along one axis; the indices' shape takes the axis' place."""
    axis = axis_of(node, node.attrs.get("axis", 0), x.ndim)
    return gathered(b, x, checked_index(b, index, x.shape[axis]), axis)


@kernel("GatherElements", dtypes={0: MOVABLE, 1: INDICES})
def gather_elements(b: Builder, node: Node, x: Operand, index: Operand) -> Operand:
    """One element of `x` for each index, which replaces the coordinate along the axis."""
    places = _element_places(b, node, x, index)
    y = b.empty(index.shape, x.dtype)
    _gather(b, b.flat(x), y, places, 0)
    return y


@kernel("GatherND", dtypes={0: MOVABLE, 1: INDICES})
def gather_nd(b: Builder, node: Node, x: Operand, index: Operand) -> Operand:
    """Slices of `x` at tuples of coordinates, within each of the leading batch dimensions."""
    batch = node.attrs.get("batch_dims", 0)
    depth = batch + index.shape[-1]
    places = _tuple_places(b, x, index, batch)
    y = b.empty([*index.shape[:-1], *x.shape[depth:]], x.dtype)
    rows = b.view(x, (math.prod(x.shape[:depth]), math.prod(x.shape[depth:])))
    _gather(b, rows, y, places, 0)
    return y


def _check_reduction(node: Node) -> Reason | None:
    reduction = node.attrs.get("reduction", "none")
    if reduction == "none":
        return None
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    if reduction not in _REDUCTIONS:
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
    y = b.empty(x.shape, x.dtype)
    copy_box(b, Box(x, [1]), Box(y, [1]), [x.size])
    if not y.size or not updates.size:
        return y
    rows = y.size // inner
    reduction = node.attrs.get("reduction", "none")
    if reduction == "none":
        b.call(_scatter_bits, b.flat(updates), b.flat(y), b.flat(places), inner, rows)
    else:
        target = b.view(y, (rows, inner))
        source = b.view(updates, (places.size, inner))
        b.call_numpy(_REDUCTIONS[reduction].at, target, b.flat(places), source)
    return y


def _element_places(b: Builder, node: Node, x: Operand, index: Operand) -> Operand:
    """For each index the place in flat `x` whose coordinate along the axis is the index."""
    axis = axis_of(node, node.attrs.get("axis", 0), x.ndim)
    checked = checked_index(b, index, x.shape[axis])
    steps = tuple(strides_of(x.shape))
    rows = tuple(1 if k == axis else size for k, size in enumerate(index.shape))
    base = b.table(rows, np.int64, _beginnings, rows, steps)
    if checked.const is not None and base.const is not None and not b.folding:
        known = np.multiply(checked.const, steps[axis], out=np.empty(index.shape, np.int64))
        return b.constant(np.add(known, base.const, out=known))
    places = b.empty(index.shape, np.int64)
    if places.size:
        sizes = index.shape[axis], math.prod(index.shape[axis + 1 :]), steps[axis]
        b.call(places_along_axis, b.flat(checked), b.flat(base), b.flat(places), *sizes)
    return places


def _beginnings(shape: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    """Where elements lie whose coordinates count up to a shape."""
    base = np.zeros([1] * len(shape), np.int64)
    for axis, size in enumerate(shape):
        along = [size if k == axis else 1 for k in range(len(shape))]
        base = base + (np.arange(size) * steps[axis]).reshape(along)
    return base


@jit
def places_along_axis(
    index: Array, base: Array, places: Array, size: int, inner: int, step: int, tid: int, nt: int
) -> None:
    """``places[o, j, i] = index[o, j, i] * step + base[o, i]`` for (outer, size, inner) of them."""
    rows = index.size // inner
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        start, under = row * inner, row // size * inner
        for i in range(inner):
            places[start + i] = index[start + i] * step + base[under + i]


def _tuple_places(b: Builder, x: Operand, index: Operand, batch: int) -> Operand:
    """For each coordinate tuple the slice it names, counted over all leading dimensions."""
    depth = index.shape[-1]
    limits = x.shape[batch : batch + depth]
    out = b.empty(index.shape[:-1], np.int64)
    rows = index.shape[:batch] + (1,) * (index.ndim - 1 - batch)
    base = b.table(rows, np.int64, _multiples, rows, math.prod(limits))
    b.call_numpy(_flatten_tuples, index, base, out, limits, b.node.name)
    return out


def _multiples(shape: tuple[int, ...], step: int) -> Array:
    """A number's multiples, from 0 on, in a shape."""
    return (np.arange(math.prod(shape), dtype=np.int64) * step).reshape(shape)


def _flatten_tuples(
    index: Array, base: Array, out: Array, limits: tuple[int, ...], name: str
) -> None:
    np.copyto(out, base)
    part = np.empty(out.shape, np.int64)
    for axis, (limit, step) in enumerate(zip(limits, strides_of(limits), strict=True)):
        normalize_index(index[..., axis], part, limit, name)
        part *= step
        np.add(out, part, out=out)


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
    """``y[o, d, i]`` is the second value where ``index[o, i]`` is d, elsewhere the first one."""
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
    _gather(b, b.view(x, (rows, inner)), y, index, 0)
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
