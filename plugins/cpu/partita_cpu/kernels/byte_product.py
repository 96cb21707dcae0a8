"""Matrix products of bytes: rows of uint8 times panels of int8, corrected for zero points.

int8 on the left and uint8 on the right are moved by 128 on the way, together with their zero
points. Sums wrap in int32, so that it does not matter when the corrections are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita_cpu.kernels.loop_jit import loop
from partita_cpu.kernels.tiles import (
    PANEL,
    QUAD,
    ROWS,
    byte_panels,
    multiply_byte_row,
    multiply_byte_rows,
)

SHIFT = 128
"""The distance between the ranges of int8 and uint8."""
CHUNK = 32
"""Rows that meet a panel while it is in the cache."""


@loop
def pack_rows(
    x: Any, packed: Any, totals: Any, rows: int, terms: int, shift: int, tid: int, nt: int
) -> None:
    """Rows as uint8, filled up with zeros to whole quads, and their sums."""
    width = (terms + QUAD - 1) // QUAD * QUAD
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source = x[row * terms : (row + 1) * terms]
        target = packed[row * width : (row + 1) * width]
        total = np.int32(0)
        for i in range(terms):
            level = np.int32(np.int32(source[i]) + np.int32(shift))
            target[i] = level
            total = np.int32(total + level)
        for i in range(terms, width):
            target[i] = 0
        totals[row] = total


@loop
def multiply_panels(
    packed: Any, panels: Any, sums: Any, rows: int, quads: int, count: int, tid: int, nt: int
) -> None:
    """``sums = packed @ panels``; ``count`` panels of weights."""
    chunks = (rows + CHUNK - 1) // CHUNK
    tasks = chunks * count
    n = count * PANEL
    for task in range(tasks * tid // nt, tasks * (tid + 1) // nt):
        chunk, panel = task % chunks, task // chunks
        row, end = chunk * CHUNK, min(rows, (chunk + 1) * CHUNK)
        for k in range(row, end):
            sums[k * n + panel * PANEL : k * n + (panel + 1) * PANEL] = 0
        at = panel * quads * PANEL * QUAD
        while row < end:
            a_at, c_at = row * quads * QUAD, row * n + panel * PANEL
            if row + ROWS <= end:
                multiply_byte_rows(packed, a_at, quads * QUAD, panels, at, sums, c_at, n, quads)
                row += ROWS
            else:
                multiply_byte_row(packed, a_at, 0, panels, at, sums, c_at, 0, quads)
                row += 1


@loop
def correct_sums(
    sums: Any,
    row_totals: Any,
    column_totals: Any,
    row_zeros: Any,
    column_zeros: Any,
    y: Any,
    rows: int,
    terms: int,
    columns: int,
    row_shift: int,
    column_shift: int,
    tid: int,
    nt: int,
) -> None:
    """Takes the zero points off: ``sum((a - za) * (b - zb))`` from ``sum(a * b)``."""
    width = (columns + PANEL - 1) // PANEL * PANEL
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source, target = (
            sums[row * width : (row + 1) * width],
            y[row * columns : (row + 1) * columns],
        )
        zero = np.int32(row_zeros[row if row_zeros.size > 1 else 0] + row_shift)
        # What a column's zero point is multiplied by.
        rest = np.int32(terms * zero - row_totals[row])
        if column_zeros.size == 1:
            offset = np.int32(np.int32(column_zeros[0] + column_shift) * rest)
            for i in range(target.size):
                target[i] = source[i] - np.int32(zero * column_totals[i]) + offset
        else:
            for i in range(target.size):
                offset = np.int32(np.int32(column_zeros[i] + column_shift) * rest)
                target[i] = source[i] - np.int32(zero * column_totals[i]) + offset


def signed(weights: Array) -> Array:
    """Weights as int8, uint8 moved by 128."""
    if weights.dtype == np.int8:
        return weights
    return (weights.astype(np.int16) - SHIFT).astype(np.int8)


def panels_of(weights: Array) -> Array:
    """Panels of a matrix of bytes."""
    return byte_panels(signed(weights))


def totals_of(weights: Array) -> Array:
    """Sums of the columns of a matrix of bytes, as moved to int8."""
    return np.asarray(signed(weights).sum(0, dtype=np.int32))


def pack_weights(
    arrange: Callable[[Array], Array], weights: Array, panels: Array, totals: Array
) -> None:
    """`panels_of` and `totals_of`, for weights that only the run brings."""
    matrix = arrange(weights)
    panels[...] = panels_of(matrix)
    totals[...] = totals_of(matrix)


def as_is(weights: Array) -> Array:
    """Weights that are a matrix (terms, columns) already."""
    return weights


def quads_of(terms: int) -> int:
    """Quads that hold this many bytes."""
    return -(-terms // QUAD)


def emit_byte_product(
    b: Builder, x: Operand, w: Operand, x_zero: Operand | None, w_zero: Operand | None
) -> Operand:
    """The int32 product of bytes of any leading shape with a matrix, less their zero points.

    Args:
        b: The builder.
        x: (..., terms), uint8 or int8.
        w: (terms, columns), int8 or uint8.
        x_zero: One zero point, one per row, or ``None`` for 0.
        w_zero: One zero point, one per column, or ``None`` for 0.
    """
    terms, columns = w.shape
    rows = math.prod(x.shape[:-1])
    shape = (*x.shape[:-1], columns)
    if not rows * columns:
        return b.empty(shape, np.int32)
    packed = b.empty((rows * quads_of(terms) * QUAD,), np.uint8)
    totals = b.empty((rows,), np.int32)
    b.call(pack_rows, b.flat(x), packed, totals, rows, terms, shift_of(x))
    y = emit_packed_product(b, packed, totals, shift_of(x), w, as_is, terms, x_zero, w_zero)
    return b.view(y, shape)


def shift_of(x: Operand) -> int:
    """What makes the elements uint8."""
    return SHIFT if x.dtype == np.int8 else 0


def emit_packed_product(
    b: Builder,
    packed: Operand,
    row_totals: Operand,
    shift: int,
    w: Operand,
    arrange: Callable[[Array], Array],
    terms: int,
    x_zero: Operand | None,
    w_zero: Operand | None,
) -> Operand:
    """The product of rows as `pack_rows` leaves them with ``arrange(w)``, (rows, columns)."""
    rows, quads = row_totals.size, quads_of(terms)
    columns = w.size // terms if terms else w.shape[-1]
    count = -(-columns // PANEL)
    if w.const is not None:
        key = f"of bytes {arrange.__name__}"
        panels = b.prepack(w, f"panels {key}", lambda array: panels_of(arrange(array)))
        totals = b.prepack(w, f"totals {key}", lambda array: totals_of(arrange(array)))
    else:
        panels = b.empty((count * quads * QUAD * PANEL,), np.int8)
        totals = b.empty((columns,), np.int32)
        b.call_numpy(pack_weights, arrange, w, panels, totals)
    sums = b.empty((rows * count * PANEL,), np.int32)
    work = rows * terms * columns // QUAD
    b.call(multiply_panels, packed, panels, sums, rows, quads, count, work=work)
    none = b.constant(np.zeros(1, np.int32))
    zeros = [none if zero is None else b.flat(zero) for zero in (x_zero, w_zero)]
    column_shift = -SHIFT if w.dtype == np.uint8 else 0
    y = b.empty((rows, columns), np.int32)
    tensors = (sums, row_totals, totals, *zeros, b.flat(y))
    b.call(correct_sums, *tensors, rows, terms, columns, shift, column_shift)
    return y
