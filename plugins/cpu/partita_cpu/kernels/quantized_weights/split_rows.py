"""Rows split into two int16 rows, so that products with them are as exact as float32's.

A row that is quantized to int16 loses what lies below 2**-16 of the largest term of each block.
With inference precision f32, what is lost is quantized as a row of its own, and the two products
are added up: ``x @ w = q(x) @ w + q(x - q(x)) @ w``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.lowering import Builder, Operand
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.quantized_weights.rows_int16 import row_factor, scale_of
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.dot_blocks import scales_by_exponents
from partita_cpu.scalar.instructions import round_even


def with_rounding_errors(b: Builder, level: Level, x: Operand, size: int) -> Operand:
    """Rows (..., terms), each followed by what int16 loses of it in blocks of `size` terms."""

    def split() -> Operand:
        rows, terms = math.prod(x.shape[:-1]), x.shape[-1]
        out = b.empty((2 * rows, terms), np.float32)
        sizes = rows, terms, size, int(scales_by_exponents(level))
        b.call(split_rows, b.flat(x), b.flat(out), *sizes)
        return out

    return b.once(x, ("split", size), split)


@loop
def split_rows(
    x: Any, out: Any, rows: int, terms: int, size: int, exponents: int, tid: int, nt: int
) -> None:
    """Copies rows, each followed by its quantization error; rows that are not finite by zeros.

    Args:
        x: float32, flat.
        out: Twice as many float32.
        rows: Number of rows.
        terms: Terms of a row.
        size: Terms of a block.
        exponents: Whether scales are powers of two times a factor of the row, as
            `dot_blocks.scales_by_exponents` says.
        tid: This thread.
        nt: All threads.
    """
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source = x[row * terms : (row + 1) * terms]
        first = out[2 * row * terms : (2 * row + 1) * terms]
        second = out[(2 * row + 1) * terms : (2 * row + 2) * terms]
        finite, factor = True, np.float32(0)
        if exponents:
            factor = row_factor(source[: terms // size * size])
        for begin in range(0, terms, size):
            end = min(begin + size, terms)
            scale, inverse, usual = scale_of(source[begin:end], factor)
            finite = finite and usual
            for i in range(begin, end):
                first[i] = source[i]
                level = np.float64(round_even(source[i] * inverse)) if finite else 0.0
                second[i] = np.float32(np.float64(source[i]) - level * np.float64(scale))
        if not finite:
            for i in range(terms):
                second[i] = np.float32(0)


@loop
def add_halves(parts: Any, bias: Any, y: Any, columns: int, tid: int, nt: int) -> None:
    """Adds up two neighbouring rows each, and the bias.

    Args:
        parts: Two rows for each row of the result, flat.
        bias: One number per column.
        y: The result, flat.
        columns: Columns of a row.
        tid: This thread.
        nt: All threads.
    """
    pieces = -(-y.size // columns)
    for row in range(pieces):
        start, stop = columns * tid // nt, columns * (tid + 1) // nt
        first, second = 2 * row * columns, (2 * row + 1) * columns
        for c in range(start, stop):
            total = parts[first + c] + parts[second + c]
            y[row * columns + c] = total + bias[c]
