"""Matrix products of bytes: rows of uint8 times panels of int8, corrected for zero points.

int8 on the left and uint8 on the right are moved by 128 on the way, together with their zero
points. Sums wrap in int32, so that it does not matter when the corrections are added. A tile of 32
rows and 64 columns is finished while it is in the cache: as int32, scaled to floats, or as bytes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.transformed_weights import Form
from partita.system.processors import usable_processors
from partita_cpu.gemm.precision_policy import Choice
from partita_cpu.gemm.tile_kernels import (
    CONFIG,
    CONFIGURE,
    DOTS,
    FLOATS,
    LEVELS,
    MOST_DOTS,
    RELEASE,
    byte_exec_type,
    byte_kernels,
)
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_bytes,
    call_dots,
    call_finish_bytes,
    call_plain,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.linalg.register_tiles import (
    PANEL,
    QUAD,
    ROWS,
    byte_panels,
    multiply_byte_row,
    multiply_byte_rows,
)
from partita_cpu.llvm.levels import PORTABLE, Level
from partita_cpu.llvm.tiles.amx_int8 import STEP
from partita_cpu.machine_model import MachineModel
from partita_cpu.scalar.math import round_even

SHIFT = 128
"""The distance between the ranges of int8 and uint8."""
CHUNK = 32
"""Rows of a tile."""
FEW = 4
"""So many rows or fewer are quicker without tiles of AMX."""
MORE_STEPS = 1
"""So many more steps than there must be are quicker than to copy rows."""
WEIGHTS_SHARE = 1 / 2
"""Of the first-level cache, for weights that stay there from tile to tile.

With a cache of 48 KB these are six steps of AMX. With five to seven a product takes 6.5 to 8 ns,
with nine 10, with 36 12.
"""
TOGETHER = 8
"""Tiles whose sums are put aside between such blocks, at most."""
FETCHES = 8
"""Calls of kernels in vectors that fetch a panel ahead: each as much as `dot_int8` says."""
TILE = CHUNK * PANEL


class Kind(enum.IntEnum):
    """What sums become."""

    SUMS = 0  # int32, as they are
    FLOATS = 1  # sum * (scale * factor) + bias, in float32
    LEVELS = 2  # round((sum + bias) * (scale * factor)) + zero, saturated


@dataclass(frozen=True)
class Result:
    """What sums become, and by what; every tensor has one element or one per column.

    Attributes:
        kind: Which formula.
        dtype: Of the result.
        scale: One factor.
        factors: More of them.
        bias: int32 for levels, float32 for floats.
        zero: Of the levels.
    """

    kind: Kind
    dtype: Any
    scale: Operand
    factors: Operand
    bias: Operand
    zero: Operand


(
    TERMS,
    COLUMNS,
    QUADS,
    ROW_SHIFT,
    COLUMN_SHIFT,
    KIND,
    LOW,
    HIGH,
    STEPS,
    PLAIN,
    BLOCK,
) = range(11)
"""What the table of `multiply_bytes` holds; PLAIN: weights have no zero points, the input has one
for all rows, and there is a factor for every column; BLOCK: steps whose weights stay in the
first-level cache."""


@loop
def pack_rows(
    x: Any,
    packed: Any,
    totals: Any,
    terms: int,
    width: int,
    shift: int,
    counted: int,
    tid: int,
    nt: int,
) -> None:
    """Rows as uint8, filled up with zeros to the width, and their sums if they are `counted`."""
    rows = totals.size
    flipped = np.uint8(shift)  # adding 128 to a byte turns its highest bit over
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source = x[row * terms : (row + 1) * terms]
        target = packed[row * width : (row + 1) * width]
        for i in range(terms):
            target[i] = np.uint8(source[i]) ^ flipped
        for i in range(terms, width):
            target[i] = 0
        if counted:
            total = np.int32(0)
            for i in range(terms):
                total = np.int32(total + np.int32(target[i]))
            totals[row] = total


class ZeroPoints(NamedTuple):
    """What takes the zero points of both sides off sums.

    Attributes:
        row_totals: Sum of each row.
        column_totals: Sum of each column.
        row_zeros: Zero point of all rows, or of each.
        column_zeros: Zero point of all columns, or of each.
    """

    row_totals: KernelArray
    column_totals: KernelArray
    row_zeros: KernelArray
    column_zeros: KernelArray


class SumScaling(NamedTuple):
    """By what sums become a result; see `Result`.

    Attributes:
        scale: One factor.
        factors: One, or one per column.
        bias: One per column.
        zero: One.
    """

    scale: KernelArray
    factors: KernelArray
    bias: KernelArray
    zero: KernelArray


@loop
def multiply_bytes(
    packed: Any,
    panels: Any,
    zeros: ZeroPoints,
    scaling: SumScaling,
    y: Any,
    scratch: Any,
    kernels: Any,
    p: Any,
    tid: int,
    nt: int,
) -> None:
    """``y = finished(sum((a - za) * (b - zb)))``, from ``sum(a * b)``.

    Args:
        packed: Rows of uint8, as many as fill tiles where kernels are native.
        panels: Weights by panels, int8.
        zeros: Zero points of both sides.
        scaling: What sums become.
        y: The result, (rows, columns).
        scratch: int32; `TOGETHER` tiles for each thread.
        kernels: `tile_kernels.byte_kernels`.
        p: The table.
        tid: This thread.
        nt: All threads.
    """
    rows, quads = zeros.row_totals.size, p[QUADS]
    threads = min(nt, scratch.size // (TOGETHER * TILE))
    if tid >= threads:
        return
    first_chunk, chunks, begin, end = _tasks_of(rows, p, tid, threads)
    if begin == end:
        return
    native, width = kernels[1] != 0, quads * QUAD
    there = packed.size // width if width else rows
    end_kernel = kernels[LEVELS if p[KIND] == _LEVELS else FLOATS]
    tiles = scratch[tid * TOGETHER * TILE : (tid + 1) * TOGETHER * TILE]
    step = width // p[STEPS]
    # Weights are taken in blocks of terms that stay in the cache from tile to tile.
    blocks = -(-p[STEPS] // p[BLOCK]) if native else 1
    if native:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    start, stop = begin, begin
    for turn in range(blocks * (end - begin)):
        if turn == blocks * (stop - begin):
            start = stop
            stop = min(end, start + TOGETHER, (start // chunks + 1) * chunks)
        block, number = divmod(turn - blocks * (start - begin), stop - start)
        task = start + number
        row, panel = (first_chunk + task % chunks) * CHUNK, task // chunks
        count = min(CHUNK, rows - row)
        at = panel * quads * PANEL * QUAD
        first = row
        tile = tiles[number * TILE : (number + 1) * TILE]
        if native and count > FEW:
            whole = 1 if count * 2 <= CHUNK else 2
            # Tiles are read as a whole: the last one may begin before the one before it ends.
            first = max(min(row, there - whole * CHUNK // 2), 0)
            done = p[STEPS] * block // blocks
            steps = p[STEPS] * (block + 1) // blocks - done
            place = address(packed) + first * width + done * step
            weights = address(panels) + at + done * step * PANEL
            sizes = (steps, step, address(tile), block)
            call_bytes(kernels[whole], (place, width, weights, *sizes))
        elif block == 0:
            following = at + quads * QUAD * PANEL if (task // chunks + 1) * chunks < end else at
            fetched = task % chunks * -(-CHUNK // max(kernels[MOST_DOTS], 1))
            places = at, following, fetched
            _fill_tile(packed, panels, tile, kernels, row, count, quads, places)
        if block < blocks - 1:
            continue
        sums = tile[(row - first) * PANEL :]
        if p[PLAIN] and end_kernel and p[KIND] != _SUMS:
            target = address(y) + y.itemsize * (row * p[COLUMNS] + panel * PANEL)
            to = target, y.itemsize * p[COLUMNS]
            _finish_natively(end_kernel, sums, zeros, scaling, to, p, count, panel * PANEL)
        else:
            _finish_tile(sums, zeros, scaling, y, p, row, count, panel * PANEL)
    if native:
        call_plain(kernels[RELEASE], (0,))


@loop(inline=True)
def _tasks_of(rows: int, p: Any, tid: int, threads: int) -> Any:
    """A thread's first tile down, how many there are, and its first and last tile of all."""
    columns, width = p[COLUMNS], p[QUADS] * QUAD
    chunks, panels = (rows + CHUNK - 1) // CHUNK, (columns + PANEL - 1) // PANEL
    # Threads share rows where these are more than the weights, so that what they computed before
    # is in their caches; else columns.
    if rows * (width + columns) > width * columns and chunks >= 2 * threads:
        first = chunks * tid // threads
        count = chunks * (tid + 1) // threads - first
        return first, count, 0, count * panels
    tasks = chunks * panels
    return 0, chunks, tasks * tid // threads, tasks * (tid + 1) // threads


@loop(inline=True)
def _finish_natively(
    kernel: int,
    sums: Any,
    zeros: ZeroPoints,
    scaling: SumScaling,
    to: Any,
    p: Any,
    count: int,
    column: int,
) -> None:
    """Finishes rows of sums by a kernel; `to`: address, and bytes from row to row."""
    level = np.int64(scaling.zero[0])
    call_finish_bytes(
        kernel,
        (
            address(sums),
            count,
            min(PANEL, p[COLUMNS] - column),
            address(zeros.column_totals) + 4 * column,
            np.int64(zeros.row_zeros[0]) + p[ROW_SHIFT],
            address(scaling.bias) + 4 * column,
            address(scaling.factors) + 4 * column,
            scaling.scale[0],
            to[0],
            to[1],
            np.float32(p[LOW] - level),
            np.float32(p[HIGH] - level),
            level,
        ),
    )


@loop(inline=True)
def fetched_ahead(weights: int, following: int, call: int, size: int) -> Any:
    """What a kernel fetches while it computes, in the numbered call with the same weights.

    Args:
        weights: Address of the panel that is multiplied by.
        following: That of the next one.
        call: How many calls there were before.
        size: Bytes of a panel.
    """
    return following + call * (size // FETCHES) if call < FETCHES else weights


@loop
def _fill_tile(
    packed: Any,
    panels: Any,
    tile: Any,
    kernels: Any,
    row: int,
    count: int,
    quads: int,
    places: Any,
) -> None:
    """The sums of some rows and one panel, without tiles of AMX.

    `places`: where this panel and the next one begin, and how many pieces were computed before.
    """
    step, done = quads * QUAD, 0
    most = kernels[MOST_DOTS]
    at, following, fetched = places
    if most:
        pieces = -(-count // most)
        weights, ahead = address(panels) + at, address(panels) + following
        for piece in range(pieces):
            done = count * piece // pieces
            rows = count * (piece + 1) // pieces - done
            place, sums = address(packed) + (row + done) * step, address(tile) + 4 * done * PANEL
            to = sums, fetched_ahead(weights, ahead, fetched + piece, step * PANEL)
            call_dots(kernels[DOTS + rows], (place, step, 1, 0, weights, quads, *to))
        return
    for i in range(count * PANEL):
        tile[i] = 0
    while done < count:
        first = (row + done) * step
        if done + ROWS <= count:
            multiply_byte_rows(packed, first, step, panels, at, tile, done * PANEL, PANEL, quads)
            done += ROWS
        else:
            multiply_byte_row(packed, first, 0, panels, at, tile, done * PANEL, 0, quads)
            done += 1


@loop
def _finish_tile(
    tile: Any,
    points: ZeroPoints,
    scaling: SumScaling,
    y: Any,
    p: Any,
    first_row: int,
    count: int,
    column: int,
) -> None:
    """Takes the zero points off, and writes what the sums become."""
    row_totals, column_totals, row_zeros, column_zeros = points
    scale, factors, bias, zero = scaling
    exist = min(PANEL, p[COLUMNS] - column)
    totals = column_totals[column : column + exist]
    one_zero, one_factor = column_zeros.size == 1, factors.size == 1
    zeros = column_zeros[:1] if one_zero else column_zeros[column : column + exist]
    scales = factors[:1] if one_factor else factors[column : column + exist]
    terms, shift = bias[column : column + exist], np.int32(p[COLUMN_SHIFT])
    low, high, level = np.float32(p[LOW]), np.float32(p[HIGH]), np.float32(zero[0])
    for r in range(count):
        row = first_row + r
        sums = tile[r * PANEL : r * PANEL + exist]
        begin = row * p[COLUMNS] + column
        target = y[begin : begin + exist]
        of_row = np.int32(row_zeros[row if row_zeros.size > 1 else 0] + p[ROW_SHIFT])
        # What a column's zero point is multiplied by.
        rest = np.int32(p[TERMS] * of_row - row_totals[row])
        if one_zero:
            offset = np.int32(np.int32(zeros[0] + shift) * rest)
            for i in range(sums.size):
                sums[i] = np.int32(sums[i] - np.int32(of_row * totals[i]) + offset)
        else:
            for i in range(sums.size):
                offset = np.int32(np.int32(zeros[i] + shift) * rest)
                sums[i] = np.int32(sums[i] - np.int32(of_row * totals[i]) + offset)
        if p[KIND] == _SUMS:
            for i in range(sums.size):
                target[i] = sums[i]
        elif p[KIND] == _FLOATS:
            for i in range(sums.size):
                factor = scale[0] * (scales[0] if one_factor else scales[i])
                target[i] = np.float32(sums[i]) * factor + terms[i]
        else:
            for i in range(sums.size):
                factor = scale[0] * (scales[0] if one_factor else scales[i])
                value = round_even(np.float32(np.int32(sums[i] + terms[i])) * factor) + level
                value = low if value < low else value
                target[i] = np.int32(high if value > high else value)


_SUMS, _FLOATS, _LEVELS = int(Kind.SUMS), int(Kind.FLOATS), int(Kind.LEVELS)


def signed(weights: Array) -> Array:
    """Weights as int8, uint8 moved by 128."""
    if weights.dtype == np.int8:
        return weights
    return (weights.astype(np.int16) - SHIFT).astype(np.int8)


def totals_of(weights: Array) -> Array:
    """Sums of the columns of a matrix of bytes, as moved to int8."""
    return np.asarray(signed(weights).sum(0, dtype=np.int32))


def _pack_weights(
    arrange: Callable[[Array], Array], weights: Array, panels: Array, totals: Array, width: int
) -> None:
    """Panels and sums of weights that only the run brings."""
    matrix = arrange(weights)
    panels[...] = byte_panels(signed(matrix), width)
    totals[...] = totals_of(matrix)


def as_is(weights: Array) -> Array:
    """Weights that are a matrix (terms, columns) already."""
    return weights


def level_of(b: Builder) -> Level:
    """The level whose kernels may be used."""
    return _machine_of(b).level


def block_steps(b: Builder) -> int:
    """Steps of AMX whose weights stay in the first-level cache from tile to tile."""
    return max(1, _machine_of(b).l1_bytes(WEIGHTS_SHARE) // (STEP * PANEL))


def _machine_of(b: Builder) -> MachineModel:
    return b.options.machine if isinstance(b.options, Choice) else MachineModel(PORTABLE)


def row_steps(terms: int) -> tuple[int, int]:
    """In how many steps AMX takes so many terms, and of how many terms each: equal steps.

    Rows that are whole quads stay as they are, if that takes few steps.
    """
    fewest = max(1, -(-terms // STEP))
    for steps in range(fewest, fewest + MORE_STEPS + 1):
        if terms and terms % (QUAD * steps) == 0:
            return steps, terms // steps
    return fewest, -(-max(terms, 1) // (QUAD * fewest)) * QUAD


def row_bytes(b: Builder, terms: int) -> int:
    """Bytes of a packed row."""
    if not level_of(b).tiles:
        return -(-terms // QUAD) * QUAD
    steps, step = row_steps(terms)
    return steps * step


def empty_rows(b: Builder, rows: int, terms: int) -> Operand:
    """Memory for packed rows; tiles of AMX read whole chunks."""
    count = -(-rows // CHUNK) * CHUNK if level_of(b).tiles else rows
    return b.empty((count * row_bytes(b, terms),), np.uint8)


def _is_packed(b: Builder, x: Operand, rows: int, terms: int) -> bool:
    """Whether rows are as `pack_rows` would leave them, and tiles read nothing behind them."""
    whole = not level_of(b).tiles or rows >= CHUNK or rows == CHUNK // 2 or rows <= FEW
    return x.dtype == np.uint8 and terms == row_bytes(b, terms) and whole


def emit_byte_product(
    b: Builder,
    x: Operand,
    w: Operand,
    x_zero: Operand | None,
    w_zero: Operand | None,
    result: Result | None = None,
) -> Operand:
    """The product of bytes of any leading shape with a matrix, less their zero points.

    Args:
        b: The builder.
        x: (..., terms), uint8 or int8.
        w: (terms, columns), int8 or uint8.
        x_zero: One zero point, one per row, or ``None`` for 0.
        w_zero: One zero point, one per column, or ``None`` for 0.
        result: What sums become; ``None`` for int32.
    """
    terms, columns = w.shape
    rows = math.prod(x.shape[:-1])
    shape = (*x.shape[:-1], columns)
    if not rows * columns:
        return b.empty(shape, np.int32 if result is None else result.dtype)
    y = emit_rows(b, x, w, as_is, terms, x_zero, w_zero, result)
    return b.view(y, shape)


def emit_rows(
    b: Builder,
    x: Operand,
    w: Operand,
    arrange: Callable[[Array], Array],
    terms: int,
    x_zero: Operand | None,
    w_zero: Operand | None,
    result: Result | None,
) -> Operand:
    """The product of rows of `terms` bytes with ``arrange(w)``, (rows, columns)."""
    rows = x.size // terms if terms else math.prod(x.shape[:-1])
    totals = row_totals_of(b, rows, w, w_zero)
    if _is_packed(b, x, rows, terms) and not needs_row_totals(w, w_zero):
        packed = b.flat(x)
    else:
        packed = empty_rows(b, rows, terms)
        counted = int(needs_row_totals(w, w_zero))
        sizes = (terms, row_bytes(b, terms), shift_of(x), counted)
        b.call(pack_rows, b.flat(x), packed, totals, *sizes)
    return emit_packed_product(
        b, packed, totals, shift_of(x), w, arrange, terms, x_zero, w_zero, result
    )


def needs_row_totals(w: Operand, w_zero: Operand | None) -> bool:
    """Whether zero points of the weights, as moved to int8, are to be taken off."""
    if w.dtype == np.int8 and w_zero is None:
        return False
    return w.dtype == np.uint8 or w_zero is None or w_zero.const is None or bool(w_zero.const.any())


def row_totals_of(b: Builder, rows: int, w: Operand, w_zero: Operand | None) -> Operand:
    """Memory for the sums of rows; zeros where they do not count."""
    if needs_row_totals(w, w_zero):
        return b.empty((rows,), np.int32)
    return b.zeros(rows, np.int32)


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
    result: Result | None = None,
) -> Operand:
    """The product of rows as `pack_rows` leaves them with ``arrange(w)``, (rows, columns)."""
    rows, width, level = row_totals.size, row_bytes(b, terms), level_of(b)
    columns = w.size // terms if terms else max(w.shape)
    panels, totals = packed_weights(b, w, arrange, columns, width)
    none, one = b.constant(np.zeros(1, np.int32)), b.constant(np.ones(1, np.float32))
    if result is None:
        bias = b.zeros(columns, np.int32)
        result = Result(Kind.SUMS, np.int32, one, one, bias, none)
    zeros = [none if zero is None else b.flat(zero) for zero in (x_zero, w_zero)]
    limits = np.iinfo(result.dtype) if result.kind is Kind.LEVELS else np.iinfo(np.int32)
    column_shift = -SHIFT if w.dtype == np.uint8 else 0
    factors = factors_of_columns(b, result, columns)
    plain = not needs_row_totals(w, w_zero) and (x_zero is None or x_zero.size == 1)
    plain = plain and factors.size == columns
    steps = row_steps(terms) if level.tiles else (1, STEP)
    sizes = (terms, columns, width // QUAD, shift, column_shift, result.kind)
    table = (*sizes, limits.min, limits.max, steps[0], plain, block_steps(b))
    y = b.empty((rows, columns), result.dtype)
    finish = (result.scale, factors, result.bias, result.zero)
    b.call(
        multiply_bytes,
        packed,
        panels,
        ZeroPoints(row_totals, totals, *zeros),
        SumScaling(*map(b.flat, finish)),
        b.flat(y),
        b.empty((_threads(b) * TOGETHER * TILE,), np.int32),
        b.constant(byte_kernels(level, steps[1])),
        b.constant(np.array(table, np.int64)),
        work=rows * terms * columns // (4 * QUAD if level.tiles else QUAD),
        exec_type=byte_exec_type(level),
    )
    return y


def packed_weights(
    b: Builder, w: Operand, arrange: Callable[[Array], Array], columns: int, width: int
) -> tuple[Operand, Operand]:
    """``arrange(w)`` by panels of so many bytes down, and the sums of its columns."""
    if w.const is not None:
        key = f"of bytes {arrange.__name__}"
        form = Form(np.int8, (-(-columns // PANEL) * width * PANEL,))
        panels = b.prepack(
            w, f"panels {width} {key}", lambda a: _panels(arrange(a), width), form=form
        )
        sums = Form(np.int32, (columns,))
        return panels, b.prepack(w, f"totals {key}", lambda a: totals_of(arrange(a)), form=sums)
    panels = b.empty((-(-columns // PANEL) * width * PANEL,), np.int8)
    totals = b.empty((columns,), np.int32)
    b.call_numpy(_pack_weights, arrange, w, panels, totals, width)
    return panels, totals


def factors_of_columns(b: Builder, result: Result, columns: int) -> Operand:
    """A result's factors, one for each column if they are constant."""
    factors = result.factors
    if factors.size > 1 or factors.const is None:
        return factors
    return b.table((columns,), np.float32, np.full, columns, factors.const.reshape(-1)[0])


def _panels(matrix: Array, width: int) -> Array:
    return byte_panels(signed(matrix), width)


def _threads(b: Builder) -> int:
    return b.options.threads if isinstance(b.options, Choice) else usable_processors()
