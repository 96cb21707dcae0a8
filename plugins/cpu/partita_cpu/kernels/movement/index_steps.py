"""Steps that read and write slices at indices, and those that check indices beforehand.

Indices are brought to one form first: int64, counted from 0, within bounds; a wrong one is an
error, never a wrong read. That is one small step, which folds for constant indices. The
copy itself then trusts them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from partita.errors import InputError, OperandError
from partita.lowering import Array, Builder, Operand
from partita.lowering.shapes.symbolic_size import Number, Size, holds_sizes
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_wrappers import Checked, ItemSized
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.binary import larger, smaller
from partita_cpu.kernels.elementwise.broadcast_loops import Kernel
from partita_cpu.scalar.instructions import like


@loop
def gather_rows(
    x: Array, y: Array, index: Array, outer: int, axis: int, inner: int, tid: int, nt: int
) -> None:
    """``y[o, j, :] = x[o, index[j], :]`` for x of (outer, axis, inner) elements.

    Args:
        x: (outer, axis, inner) elements, flat.
        y: (outer, indices, inner) elements, flat.
        index: Indices along the axis, none of them negative.
        outer: Elements before the axis.
        axis: Of x.
        inner: Elements behind it.
        tid: This thread.
        nt: All threads; they share rows of y.
    """
    count = index.size
    rows = outer * count
    if inner == 1:
        row, stop = rows * tid // nt, rows * (tid + 1) // nt
        o = row // count
        start = row - o * count
        while row < stop:
            end = min(count, start + stop - row)
            source, target = o * axis, o * count
            for j in range(start, end):
                y[target + j] = x[np.uint64(source + index[j])]
            row += end - start
            start = 0
            o += 1
        return
    begin = rows * tid // nt
    o = begin // count
    j = begin - o * count
    for row in range(begin, rows * (tid + 1) // nt):
        first = (o * axis + index[j]) * inner
        j += 1
        if j == count:
            j = 0
            o += 1
        wanted, made = x[first : first + inner], y[row * inner : (row + 1) * inner]
        for i in range(inner):
            made[i] = wanted[i]


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
    """``y[o, i, j, :] = x[o, down[i], across[j], :]`` for x of (outer, height, width, inner).

    Args:
        x: (outer, height, width, inner) elements, flat.
        y: Output (outer, rows, columns, inner), flat.
        down: The line of x for each of y's rows.
        across: The column of x for each of y's columns.
        height: Lines of x.
        width: Columns of x.
        inner: Elements of a pixel.
        tid: This thread.
        nt: All threads; they share rows of y.
    """
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


@loop
def scatter_rows(
    updates: Array, y: Array, index: Array, inner: int, rows: int, tid: int, nt: int
) -> None:
    """``y[index[j], :] = updates[j, :]`` in the order of j; each thread owns a range of rows.

    Args:
        updates: (indices, inner) elements, flat.
        y: (rows, inner) elements, flat.
        index: A row of y for each of the updates, none of them negative.
        inner: Elements of a row.
        rows: Of y.
        tid: This thread.
        nt: All threads.
    """
    low = rows * tid // nt
    high = rows * (tid + 1) // nt
    for j in range(index.size):
        row = index[j]
        if low <= row < high:
            source = updates[j * inner : (j + 1) * inner]
            target = y[row * inner : (row + 1) * inner]
            for i in range(inner):
                target[i] = source[i]


def _combining(combine: Callable[..., Any]) -> Kernel:
    """A kernel as `scatter_rows` that combines updates with what is there, in the order of j.

    Args:
        combine: Of what is there and an update, what shall be there.
    """

    def combine_rows(
        updates: Any, y: Any, index: Any, inner: int, rows: int, tid: int, nt: int
    ) -> None:
        low = rows * tid // nt
        high = rows * (tid + 1) // nt
        if inner == 1:
            for j in range(index.size):
                row = index[j]
                if low <= row < high:
                    there = y[np.uint64(row)]
                    y[np.uint64(row)] = like(there, combine(there, updates[j]))
            return
        for j in range(index.size):
            row = index[j]
            if low <= row < high:
                source = updates[j * inner : (j + 1) * inner]
                target = y[row * inner : (row + 1) * inner]
                for i in range(inner):
                    target[i] = like(target[i], combine(target[i], source[i]))

    combine_rows.__name__ = combine_rows.__qualname__ = f"scatter_{combine.__name__}"
    return loop(combine_rows)


_COMBINING = {
    "add": _combining(operator.add),
    "mul": _combining(operator.mul),
    "min": _combining(smaller),
    "max": _combining(larger),
}
REDUCTIONS = frozenset({"none", *_COMBINING})
"""What `scatter_into` does with what is at a place already."""

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
        raise out_of_range(name, low if low < -limit else high, limit)
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
    """Writes indices to `out`, negative ones counted from the end, or a bad one to `wrong`.

    Args:
        index: Integers, flat.
        out: int64 of the same size.
        wrong: int64 [1]; one that is out of range.
        limit: How many places there are.
        tid: This thread.
        nt: All threads.

    Raises:
        ValueError: An index is out of range.
    """
    for i in range(index.size * tid // nt, index.size * (tid + 1) // nt):
        place = np.int64(index[i])
        if place < -limit or place >= limit:
            wrong[0] = place
            raise ValueError("an index is out of range")
        out[i] = place + limit if place < 0 else place


def refuse_index(
    name: str, index: Array, out: Array, wrong: Array, limit: int, *more: Any
) -> NoReturn:
    """Raises the error for an index that a kernel wrote to `wrong`.

    Args:
        name: Of the operation.
        index: What the kernel read.
        out: What it wrote.
        wrong: int64 [1]; the index.
        limit: How many places there are.
        more: What else the kernel takes.

    Raises:
        InputError: In all cases.
    """
    raise out_of_range(name, int(wrong[0]), limit)


def out_of_range(name: str, wrong: int, limit: int) -> InputError:
    """The error of an operation for an index that is not one of so many places."""
    allowed = f"allowed are {-limit} to {limit - 1}" if limit else "there is none to take"
    return InputError(
        f"Operation '{name}': index {wrong} is out of range for a dimension of size {limit}; "
        f"{allowed}."
    )


def checked_index(b: Builder, index: Operand, limit: Number) -> Operand:
    """The indices as int64 from 0 to ``limit - 1``; checked at run time, or now if constant.

    Args:
        b: The program's builder.
        index: Indices of any integer type and shape; negative ones count from the end.
        limit: How many places there are.

    Returns:
        An operand of the shape of `index`.

    Raises:
        InputError: An index is out of range: now if they are constant, else at the run.
    """
    out = b.empty(index.shape, np.int64)
    if index.const is not None and type(limit) is Size and not holds_sizes(index.const):
        places = tuple(index.const.reshape(-1).tolist())
        sizes = index.shape, np.int64
        return b.computed(*sizes, _normalized, places, index.shape, limit, b.node.name)
    if index.const is not None and not b.folding:
        elements = np.empty(index.shape, np.int64)
        normalize_index(index.const, elements, limit, b.node.name)
        return b.constant(elements)
    check = Checked(normalize_indices, functools.partial(refuse_index, b.node.name))
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

    Args:
        b: Records it.
        x: The tensor that they are for.
        axis: Along which.
        count: How many indices.
        index_of: Gives int64 [count]; a function that is known by itself.
        args: Its arguments: sizes and other constants.

    Returns:
        int64 [count].

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
    """Slices of `x` along `axis` at checked int64 indices, whose shape takes the axis' place.

    Args:
        b: The program's builder.
        x: The tensor.
        index: As :func:`checked_index` gives it.
        axis: Counted from 0.
    """
    y = b.empty([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]], x.dtype)
    gather_into(b, x, y, index, axis)
    return y


def gather_into(b: Builder, x: Operand, y: Operand, index: Operand, axis: int) -> None:
    """Writes slices of `x` along `axis` at checked int64 indices to `y`.

    Args:
        b: Records it.
        x: What is read.
        y: What is written; its shape is not looked at.
        index: Which slices, in row-major order.
        axis: Along which.
    """
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    with b.if_any(y.size) as is_any:
        if is_any:
            sizes = outer, x.shape[axis], inner
            b.call(_gather_bits, b.flat(x), b.flat(y), b.flat(index), *sizes)


def scatter_into(
    b: Builder,
    updates: Operand,
    y: Operand,
    places: Operand,
    inner: int = 1,
    reduction: str = "none",
) -> None:
    """Writes rows of elements to their places, or combines them with what is there.

    Args:
        b: Records it.
        updates: The rows, one for each place.
        y: What is written.
        places: Checked int64 numbers of rows in `y`.
        inner: Elements of a row.
        reduction: One of `REDUCTIONS`.
    """
    if updates.size:
        flat = b.flat(updates), b.flat(y), b.flat(places)
        kernel = _scatter_bits if reduction == "none" else _COMBINING[reduction]
        b.call(kernel, *flat, inner, y.size // inner)
