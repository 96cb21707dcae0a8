"""Products of several matrices of bytes, both only known at run time: attention between levels.

Rows are packed for all products before; each thread packs the right matrices that it meets.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Builder, Operand
from partita.lowering.geometry.broadcasting import broadcast
from partita_cpu.gemm.tile_kernels import byte_exec_type
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.int8.byte_tiles import (
    CHUNK,
    SHIFT,
    TILE,
    TOGETHER,
    SumScaling,
    ZeroPoints,
    multiply_bytes,
    pack_rows,
)
from partita_cpu.kernels.int8.product import (
    ByteOperands,
    Result,
    byte_table,
    factors_of_columns,
    kernels_for,
    level_of,
    of_sums,
    row_bytes,
    row_steps,
    threads_of,
)
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD


class PackedRows(NamedTuple):
    """Left matrices as `pack_rows` leaves them, and zero points of both sides.

    Attributes:
        rows: uint8, flat; tiles may read a chunk behind the last one.
        totals: Sum of each, where they are counted.
        row_zeros: Zero point of the left side.
        column_zeros: That of the right side.
    """

    rows: KernelArray
    totals: KernelArray
    row_zeros: KernelArray
    column_zeros: KernelArray


class ThreadMemory(NamedTuple):
    """Memory of all threads, of each as much.

    Attributes:
        panels: int8: a right matrix by panels.
        totals: int32: sums of its columns.
        sums: int32: `TOGETHER` tiles.
    """

    panels: KernelArray
    totals: KernelArray
    sums: KernelArray


class BatchSizes(NamedTuple):
    """Sizes of products of matrices one behind another.

    Attributes:
        x_rows: Rows from one left matrix to the next; 0 if there is one only.
        w_step: Elements from one right matrix to the next; 0 if there is one only.
        m: Rows.
        k: Terms.
        n: Columns.
        width: Bytes of a packed row.
        shift: What makes right matrices int8: 128, or 0.
        parts: Into which the rows of a product are divided.
    """

    x_rows: int
    w_step: int
    m: int
    k: int
    n: int
    width: int
    shift: int
    parts: int


@loop
def multiply_byte_batches(
    left: PackedRows,
    w: Any,
    scaling: SumScaling,
    y: Any,
    memory: ThreadMemory,
    kernels: Any,
    p: Any,
    sizes: BatchSizes,
    tid: int,
    nt: int,
) -> None:
    """``y[i] = finished(sum((a[i] - za) * (b[i] - zb)))`` for matrices one behind another.

    Args:
        left: Left matrices.
        w: Right matrices (k, n), flat.
        scaling: What sums become.
        y: Results (m, n), flat.
        memory: Of the threads.
        kernels: `tile_kernels.byte_kernels`.
        p: The table of `multiply_bytes`.
        sizes: Of the matrices.
        tid: This thread.
        nt: All threads; they share matrices, or parts of them.
    """
    threads = min(nt, memory.sums.size // (TOGETHER * TILE))
    if tid >= threads:
        return
    m, n, parts = sizes.m, sizes.n, sizes.parts
    size = (n + PANEL - 1) // PANEL * sizes.width * PANEL
    panels = memory.panels[tid * size : (tid + 1) * size]
    totals = memory.totals[tid * n : (tid + 1) * n]
    sums = memory.sums[tid * TOGETHER * TILE : (tid + 1) * TOGETHER * TILE]
    units = y.size // (m * n) * parts
    packed = -1
    for unit in range(units * tid // threads, units * (tid + 1) // threads):
        batch = unit // parts
        first, end = m * (unit % parts) // parts, m * (unit % parts + 1) // parts
        if first == end:
            continue
        if packed < 0 or (packed != batch and sizes.w_step > 0):
            pack_panels(w[batch * sizes.w_step :], panels, totals, sizes)
            packed = batch
        row = batch * sizes.x_rows + first
        zeros = ZeroPoints(
            left.totals[row : row + end - first], totals, left.row_zeros, left.column_zeros
        )
        target = y[(batch * m + first) * n : (batch * m + end) * n]
        rows = left.rows[row * sizes.width :]
        multiply_bytes(rows, panels, zeros, scaling, target, sums, kernels, p, 0, 1)


@loop
def pack_panels(w: Any, panels: Any, totals: Any, sizes: BatchSizes) -> None:
    """A right matrix by panels of quads, as int8, and the sums of its columns.

    Args:
        w: The matrix (k, n), flat; int8 or uint8.
        panels: Gets it.
        totals: Gets the sums.
        sizes: Of the matrix.
    """
    k, n, quads = sizes.k, sizes.n, sizes.width // QUAD
    flipped = np.uint8(sizes.shift)
    for first in range(0, n, PANEL):
        columns = min(PANEL, n - first)
        sums = totals[first : first + columns]
        for i in range(columns):
            sums[i] = 0
        for quad in range(quads):
            at = (first // PANEL * quads + quad) * QUAD * PANEL
            to = panels[at : at + QUAD * PANEL]
            there = min(QUAD, max(k - quad * QUAD, 0))
            if there < QUAD or columns < PANEL:
                for i in range(QUAD * PANEL):
                    to[i] = 0
            start = quad * QUAD * n + first
            if there == QUAD:
                a, b = w[start : start + columns], w[start + n : start + n + columns]
                c = w[start + 2 * n : start + 2 * n + columns]
                d = w[start + 3 * n : start + 3 * n + columns]
                for i in range(columns):
                    to[4 * i] = np.int8(np.uint8(a[i]) ^ flipped)
                    to[4 * i + 1] = np.int8(np.uint8(b[i]) ^ flipped)
                    to[4 * i + 2] = np.int8(np.uint8(c[i]) ^ flipped)
                    to[4 * i + 3] = np.int8(np.uint8(d[i]) ^ flipped)
            else:
                for j in range(there):
                    line = w[start + j * n : start + j * n + columns]
                    for i in range(columns):
                        to[4 * i + j] = np.int8(np.uint8(line[i]) ^ flipped)
            for i in range(columns):
                pair = np.int32(to[4 * i]) + np.int32(to[4 * i + 1])
                other = np.int32(to[4 * i + 2]) + np.int32(to[4 * i + 3])
                sums[i] = np.int32(sums[i] + pair + other)


def fits_batches(operands: ByteOperands) -> bool:
    """Whether `emit_byte_batches` records the products of these matrices."""
    x, w = operands.x, operands.w
    if x.ndim < 2 or w.ndim < 2 or x.shape[-1] != w.shape[-2]:
        return False
    try:
        many = math.prod(broadcast(x.shape[:-2], w.shape[:-2]))
    except ValueError:
        return False
    equal = all(math.prod(matrices.shape[:-2]) in (1, many) for matrices in (x, w))
    return equal and all(z is None or z.size == 1 for z in (operands.x_zero, operands.w_zero))


def emit_byte_batches(b: Builder, operands: ByteOperands, result: Result | None = None) -> Operand:
    """Records the products of matrices that `fits_batches`.

    Args:
        b: Records it.
        operands: Matrices (..., rows, terms) and (..., terms, columns); of either as many as there
            are products, or one.
        result: What sums become, by one factor or one per column; ``None`` for int32.
    """
    x, w, level = operands.x, operands.w, level_of(b)
    (m, k), n = x.shape[-2:], w.shape[-1]
    result = of_sums(b, n) if result is None else result
    counts = [math.prod(matrices.shape[:-2]) for matrices in (x, w)]
    y = b.empty((*broadcast(x.shape[:-2], w.shape[:-2]), m, n), result.dtype)
    if not y.size:
        return y
    result = replace(result, factors=factors_of_columns(b, result, n))
    steps = row_steps(k) if level.tiles else (1, k)
    width, rows = row_bytes(b, k), counts[0] * m
    counted = operands.needs_row_totals
    totals = operands.row_totals(b, rows)
    packed = x
    if level.tiles or counted or x.dtype != np.uint8 or width != k:
        packed = b.empty(((rows + CHUNK) * width,), np.uint8)
        shift = operands.shift
        b.call(pack_rows, b.flat(x), packed, totals, k, width, shift, int(counted))
    table, in_registers = byte_table(b, operands, result, (k, n, width, steps[0]))
    none = b.constant(np.zeros(1, np.int32))
    zeros = [none if z is None else b.flat(z) for z in (operands.x_zero, operands.w_zero)]
    threads, products = threads_of(b), max(counts)
    b.call(
        multiply_byte_batches,
        PackedRows(b.flat(packed), totals, *zeros),
        b.flat(w),
        SumScaling(*map(b.flat, (result.scale, result.factors, result.bias, result.zero))),
        b.flat(y),
        ThreadMemory(
            b.empty((threads * -(-n // PANEL) * width * PANEL,), np.int8),
            b.empty((threads * n,), np.int32),
            b.empty((threads * TOGETHER * TILE,), np.int32),
        ),
        b.constant(kernels_for(level, steps[1], result, in_registers)),
        b.constant(table),
        BatchSizes(
            m if counts[0] > 1 else 0,
            k * n if counts[1] > 1 else 0,
            m,
            k,
            n,
            width,
            SHIFT if w.dtype == np.uint8 else 0,
            max(1, threads // products),
        ),
        work=y.size * k // (4 * QUAD if level.tiles else QUAD),
        exec_type=byte_exec_type(level),
    )
    return y
