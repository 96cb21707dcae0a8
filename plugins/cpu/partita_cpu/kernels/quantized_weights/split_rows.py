"""Rows as sums of two, each of which 16 bits hold: products of both are those of float32.

Rows that are quantized to 16 bits lose what lies below 2**-16 of the largest term of a block. What
is lost becomes a row of its own, quantized by its own largest terms; the two products are added up.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.lowering import Builder, Operand
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.quantized_weights.row_quantization import row_factor, scale_of
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.dot_blocks import scales_by_exponents
from partita_cpu.scalar.instructions import round_even


def with_rests(b: Builder, level: Level, x: Operand, size: int) -> Operand:
    """Rows (..., terms), each followed by what 16 bits lose of it in blocks of so many terms."""

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
    """Behind each row what `quantize_rows` takes off it; of rows that are not finite, zeros.

    Args:
        x: float32, flat.
        out: Twice as many.
        rows: How many.
        terms: Of a row.
        size: Of a block.
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
    """The sums of two rows each, and of the bias.

    Args:
        parts: Two rows for each of the result, flat.
        bias: A number for each column.
        y: The result, flat.
        columns: Of a row.
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
