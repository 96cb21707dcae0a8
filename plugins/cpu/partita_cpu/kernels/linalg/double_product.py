"""Small products of float64 rows by a constant matrix, in register tiles of AVX-512.

Numpy's BLAS computes the others. It is called from Python, which takes as long as a small product.
"""

from __future__ import annotations

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.shapes.symbolic_size import holds_sizes
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.linalg.register_tiles import (
    PANEL,
    float_panels,
    multiply_row,
    multiply_three_rows,
    multiply_two_rows,
)
from partita_cpu.scalar.instructions import wide_vectors
from partita_cpu.scalar.math import copy_row
from partita_cpu.threads.thread_memory import thread_memory

ROWS = 3
"""Of a tile: their sums of a panel fill 24 of the 32 registers of AVX-512."""

CHUNK = 128
"""Terms whose weights, 64 KB of a panel, stay in the second-level cache from tile to tile."""

LEAST_SHARE = 3 / 4
"""Of the columns of all panels, columns that exist: fewer are left to BLAS."""

MOST_WORK = 1 << 19
"""Multiplications beyond which a product is left to BLAS."""

_LANES = 16
_TILE = ROWS * PANEL


@loop
def multiply_doubles(
    x: Array,
    panels: Array,
    bias: Array,
    y: Array,
    scratch: Array,
    terms: int,
    columns: int,
    tid: int,
    nt: int,
) -> None:
    """``y = x @ weights + bias``.

    Args:
        x: (rows, terms), flat.
        panels: `register_tiles.float_panels` of the weights.
        bias: A number for each column of all panels.
        y: (rows, columns), flat.
        scratch: A tile of sums for each thread.
        terms: Of a sum.
        columns: Of the result.
        tid: This thread.
        nt: All threads; they share panels, and rows where these are fewer.
    """
    wide_vectors()
    threads = min(nt, scratch.size // _TILE)
    if tid >= threads:
        return
    rows, count = x.size // terms, -(-columns // PANEL)
    tiles = -(-rows // ROWS)
    down = min(tiles, -(-threads // count))
    tasks = count * down
    for task in range(tasks * tid // threads, tasks * (tid + 1) // threads):
        panel, part = task // down, task % down
        column = panel * PANEL
        exist = min(PANEL, columns - column)
        for chunk in range(0, terms, CHUNK):
            taken = min(CHUNK, terms - chunk)
            w_at = (panel * terms + chunk) * PANEL
            for tile in range(tiles * part // down, tiles * (part + 1) // down):
                row = tile * ROWS
                few, place = min(ROWS, rows - row), row * columns + column
                c, at, step = y, place, columns
                if exist < PANEL:
                    c, at, step = scratch, tid * _TILE, PANEL
                for r in range(few):
                    to = c[at + r * step : at + r * step + PANEL]
                    if chunk == 0:
                        copy_row(bias[column : column + PANEL], to)
                    elif exist < PANEL:
                        before = place + r * columns
                        copy_row(y[before : before + exist], to[:exist])
                a_at = row * terms + chunk
                if few == ROWS:
                    multiply_three_rows(x, a_at, terms, panels, w_at, c, at, step, taken)
                elif few == 2:
                    multiply_two_rows(x, a_at, terms, panels, w_at, c, at, step, taken)
                else:
                    multiply_row(x, a_at, terms, panels, w_at, c, at, step, taken)
                if exist < PANEL:
                    for r in range(few):
                        sums, after = at + r * step, place + r * columns
                        copy_row(c[sums : sums + exist], y[after : after + exist])


def emit_double_product(
    b: Builder, x: Operand, w: Operand, flip_w: bool, bias: Operand | None
) -> Operand | None:
    """A small product of float64 by a constant matrix, or ``None`` if it is none, or no AVX-512.

    Args:
        b: Records it.
        x: [..., rows, terms].
        w: [terms, columns]; with `flip_w` [columns, terms].
        flip_w: Whether w lies the other way round.
        bias: A constant for each column, which is added; ``None`` for none.

    Returns:
        [..., rows, columns].
    """
    policy = None if b.folding else native_policy(b.options)
    if policy is None or policy.level.lanes < _LANES or w.const is None or w.ndim != 2:
        return None
    terms, columns = w.shape[::-1] if flip_w else w.shape
    padded = -(-columns // PANEL) * PANEL
    fits = x.dtype == w.dtype == np.float64 and x.ndim > 1 and x.shape[-1] == terms
    if not fits or holds_sizes(x.shape) or not columns or columns < LEAST_SHARE * padded:
        return None
    if not 0 < x.size * columns <= MOST_WORK:
        return None

    def panels(array: Array) -> Array:
        return float_panels(array.T if flip_w else array)

    def padded_bias(array: Array) -> Array:
        found = np.zeros(padded)
        found[:columns] = array.reshape(-1)
        return found

    y = b.empty((*x.shape[:-1], columns), x.dtype)
    form = Form(w.dtype, (terms * padded,))
    b.call(
        multiply_doubles,
        b.flat(x),
        b.prepack(w, ("double panels", PANEL, flip_w), panels, form=form),
        b.constant(np.zeros(padded))
        if bias is None
        else b.prepack(bias, ("double bias", padded), padded_bias),
        b.flat(y),
        thread_memory(b, policy.threads, _TILE, np.float64),
        terms,
        columns,
        work=2 * y.size * terms,
        exec_type="avx512_f64",
    )
    return y
