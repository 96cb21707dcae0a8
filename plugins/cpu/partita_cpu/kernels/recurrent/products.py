"""The products of inputs and states with their weights, in floats and in bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.gemm.tile_kernels import DOTS, MOST_DOTS, NARROW
from partita_cpu.jit.intrinsics.address_call import address, call_dots, call_narrow, call_tile
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.linalg.register_tiles import (
    MOST_ROWS,
    PANEL,
    QUAD,
    multiply_byte_row,
    multiply_five_rows,
    multiply_row,
    multiply_rows,
    multiply_six_rows,
    multiply_three_rows,
    multiply_two_rows,
)
from partita_cpu.scalar.instructions import round_even
from partita_cpu.scalar.math import copy_row

CHUNK = 32
"""Rows that meet a panel while it is in the cache."""


@loop
def input_products(
    x: Any,
    panels: Any,
    bias: Any,
    y: Any,
    directions: int,
    rows: int,
    terms: int,
    width: int,
    tid: int,
    nt: int,
) -> None:
    """``y = x @ weights + bias`` of every direction, all steps at once.

    ``panels`` are those of all directions; rows of ``bias`` and ``y`` are ``width`` long.

    Args:
        x: (rows, terms) numbers, flat.
        panels: Weights of PANEL columns each, (directions, width / PANEL, terms, PANEL), flat.
        bias: (directions, width), flat.
        y: Output (directions, rows, width), flat.
        directions: 1 or 2.
        rows: Steps times batch.
        terms: Elements of an input.
        width: Columns of all gates, in whole panels.
        tid: This thread.
        nt: All threads; they share panels, and chunks of rows.
    """
    count = width // PANEL
    chunks = (rows + CHUNK - 1) // CHUNK
    tasks = directions * count * chunks
    for task in range(tasks * tid // nt, tasks * (tid + 1) // nt):
        panel, chunk = task // chunks, task % chunks
        direction, column = panel // count, panel % count * PANEL
        terms_at = panel * terms * PANEL
        row, end = chunk * CHUNK, min(rows, (chunk + 1) * CHUNK)
        for k in range(row, end):
            at = (direction * rows + k) * width + column
            start = direction * width + column
            copy_row(bias[start : start + PANEL], y[at : at + PANEL])
        while row < end:
            at = (direction * rows + row) * width + column
            taken = _rows_of_tile(end - row)
            _multiply(taken, x, row * terms, terms, panels, terms_at, y, at, width, terms)
            row += taken


@loop(inline=True)
def _rows_of_tile(left: int) -> int:
    """How many rows to take next, so that as few tiles as can be are about as large."""
    tiles = (left + MOST_ROWS - 1) // MOST_ROWS
    return (left + tiles - 1) // tiles


@loop(inline=True)
def _multiply(
    rows: int,
    a: Any,
    a_at: int,
    a_step: int,
    w: Any,
    w_at: int,
    c: Any,
    c_at: int,
    c_step: int,
    terms: int,
) -> None:
    """The tile of so many rows, 1 to MOST_ROWS: a panel of weights is read once for all of them.

    Args:
        rows: Of the tile.
        a: Factors of the weights.
        a_at: Where the first row of them starts.
        a_step: Elements from one row of them to the next.
        w: Panels.
        w_at: Where the panel starts.
        c: Where products are added.
        c_at: Where the first row of them starts.
        c_step: Elements from one row of them to the next.
        terms: Elements of a row of factors.
    """
    if rows == MOST_ROWS:
        multiply_six_rows(a, a_at, a_step, w, w_at, c, c_at, c_step, terms)
    elif rows == 5:
        multiply_five_rows(a, a_at, a_step, w, w_at, c, c_at, c_step, terms)
    elif rows == 4:
        multiply_rows(a, a_at, a_step, w, w_at, c, c_at, c_step, terms)
    elif rows == 3:
        multiply_three_rows(a, a_at, a_step, w, w_at, c, c_at, c_step, terms)
    elif rows == 2:
        multiply_two_rows(a, a_at, a_step, w, w_at, c, c_at, c_step, terms)
    else:
        multiply_row(a, a_at, a_step, w, w_at, c, c_at, c_step, terms)


class GatePanels(NamedTuple):
    """Weights from the state to gates.

    Attributes:
        weights: Panels of 64 gates, one behind another; rows of gates are as long.
        first: Where they start.
        terms: Elements of a state.
        panels: How many panels.
    """

    weights: KernelArray
    first: int
    terms: int
    panels: int


@loop
def add_products(
    state: Any,
    s_step: int,
    weights: GatePanels,
    gates: Any,
    places: Any,
    offset: int,
    row: int,
    stop: int,
) -> None:
    """``gates += state @ weights`` for the rows from ``row`` to ``stop``.

    Args:
        state: Row k starts at ``k * s_step``.
        s_step: Elements from one row of the state to the next.
        weights: From the state to gates.
        gates: Row k starts at ``places[k] + offset``.
        places: Places of the gates of each row; below 0 for rows that rest.
        offset: Added to them.
        row: First row.
        stop: Behind the last row.
    """
    w_at, terms, panels = weights.first, weights.terms, weights.panels
    while row < stop:
        at = places[row]
        if at < 0:
            row += 1
            continue
        count, step = 1, 0
        if row + 1 < stop and places[row + 1] > at:
            step = places[row + 1] - at
            most = _rows_of_tile(stop - row)
            while count < most and places[row + count] == at + count * step:
                count += 1
        for panel in range(panels):
            w, c = w_at + panel * terms * PANEL, at + offset + panel * PANEL
            _multiply(count, state, row * s_step, s_step, weights.weights, w, gates, c, step, terms)
        row += count


@loop(inline=True)
def add_panel_products(
    state: Any,
    n: int,
    weights: Any,
    direction: int,
    gates: Any,
    width: int,
    places: Any,
    row: int,
    stop: int,
) -> None:
    """`add_pair_products` in floats.

    Args:
        state: A row of n elements for each row of gates, flat.
        n: Elements of a row of the state.
        weights: Panels of all directions' weights, one behind another, flat.
        direction: Which direction's weights.
        gates: Rows of gates.
        width: Columns of all gates.
        places: Places of the gates of each row.
        row: First row.
        stop: Behind the last row.
    """
    panels = GatePanels(weights, direction * n * width, n, width // PANEL)
    add_products(state, n, panels, gates, places, 0, row, stop)


class StatePairs(NamedTuple):
    """What multiplies states by weights in bfloat16, as pairs of neighbouring terms.

    Attributes:
        weights: (directions, blocks, pairs, columns of a block, 2) bits, flat.
        rounded: Room for a state in whole pairs, for each of its rows.
        zeros: As many floats as a block has columns, then an integer that is 0.
        kernels: `tile_kernels.tile_kernels`.
        most: Rows of a tile, at most.
        wide: Columns of a block.
    """

    weights: KernelArray
    rounded: KernelArray
    zeros: KernelArray
    kernels: KernelArray
    most: int
    wide: int


@loop
def add_pair_products(
    state: Any,
    n: int,
    pairs: StatePairs,
    direction: int,
    gates: Any,
    width: int,
    places: Any,
    row: int,
    stop: int,
) -> None:
    """``gates += state @ weights`` in bfloat16 for the rows from ``row`` to ``stop``.

    Args:
        state: Rows of n elements.
        n: Elements of a row.
        pairs: The weights, and what multiplies by them.
        direction: Which weights.
        gates: Rows of `width` elements; row k starts at ``places[k]``.
        width: Columns of all gates.
        places: Places of the gates of each row; below 0 for rows that rest.
        row: First row.
        stop: Behind the last row.
    """
    kernels, wide, steps = pairs.kernels, pairs.wide, (n + 1) // 2
    zeros, line = address(pairs.zeros), 4 * steps
    block_bytes = 4 * steps * wide
    blocks = width // wide
    low, high = np.float32(-np.inf), np.float32(np.inf)
    while row < stop:
        at = places[row]
        if at < 0:
            row += 1
            continue
        count, step = 1, 0
        if row + 1 < stop and places[row + 1] > at:
            step = places[row + 1] - at
            most = min(pairs.most, stop - row)
            while count < most and places[row + count] == at + count * step:
                count += 1
        a = address(pairs.rounded) + row * line
        for k in range(count):
            source = address(state) + 4 * (row + k) * n
            call_narrow(kernels[NARROW], (source, n, a + k * line, 0, 2 * steps))
        packed = address(pairs.weights) + direction * blocks * block_bytes
        place = address(gates) + 4 * at
        for _ in range(blocks):
            finish = (a, zeros, place, place, 4 * step, wide, low, high, 0)
            given = (a, line, zeros + 4 * wide, 1, steps, packed, 0, count, 0, packed)
            call_tile(kernels[count], (*given, *finish))
            packed += block_bytes
            place += 4 * wide
        row += count


@loop
def quantize_rows(rows: Any, levels: Any, count: int, n: int, width: int) -> Any:
    """Rows as uint8 by their common range, filled up to ``width``; scale and zero point."""
    low, high = np.float32(0), np.float32(0)
    for i in range(count * n):
        x = rows[i]
        low = x if x < low else low
        high = x if x > high else high
    scale = (high - low) / np.float32(255)
    scale = np.float32(1) if scale == np.float32(0) else scale
    zero = min(max(round_even(-low / scale), np.float32(0)), np.float32(255))
    for row in range(count):
        for i in range(n):
            level = round_even(rows[row * n + i] / scale) + zero
            levels[row * width + i] = np.int32(min(max(level, np.float32(0)), np.float32(255)))
        for i in range(n, width):
            levels[row * width + i] = 0
    return scale, np.int32(zero)


@loop(inline=True)
def _column(total: Any, zero: Any, factor: Any, level: Any, weights: Any, scale: Any) -> Any:
    """One element of a product of bytes: the sum without its zero points, scaled.

    Args:
        total: The sum of products.
        zero: The weights' zero point.
        factor: What it is multiplied with: the row's length times its zero point, less its sum.
        level: The row's zero point.
        weights: The sum of the column's weights.
        scale: Of rows and weights.
    """
    rest = np.int32(np.int32(zero * factor) - np.int32(level * weights))
    return np.float32(np.int32(total + rest)) * scale


class QuantizedState(NamedTuple):
    """A row of levels, whole quads of them, with their scale and zero point."""

    levels: KernelArray
    scale: Any
    zero: int


class ByteColumns(NamedTuple):
    """What belongs to the columns of quantized weights: scales, zero points, sums of a column."""

    scales: KernelArray
    zeros: KernelArray
    totals: KernelArray


@loop
def add_byte_products(
    state: QuantizedState,
    weights: Any,
    w_at: int,
    of_columns: ByteColumns,
    gates: Any,
    sums: Any,
    kernels: Any,
    n: int,
) -> None:
    """``gates += state @ weights`` for one row of n elements, both quantized.

    Args:
        state: The row.
        weights: Panels of int8, flat.
        w_at: Where those of the row's direction start.
        of_columns: What belongs to the direction's columns.
        gates: The row's gates.
        sums: Room for a panel of int32.
        kernels: `tile_kernels.byte_kernels`.
        n: Elements of the row.
    """
    levels, scale, zero = state
    scales, zeros, totals = of_columns
    quads, columns = levels.size // QUAD, gates.size
    whole = np.int32(0)
    for i in range(quads * QUAD):
        whole = np.int32(whole + np.int32(levels[i]))
    level = np.int32(zero)
    # What a column's zero point is multiplied by.
    factor = np.int32(np.int32(n) * level - whole)
    for panel in range((columns + PANEL - 1) // PANEL):
        w = w_at + panel * quads * QUAD * PANEL
        if kernels[MOST_DOTS]:
            place = address(weights) + w
            to = (quads, address(sums), place)
            call_dots(kernels[DOTS + 1], (address(levels), 0, 1, 0, place, *to))
        else:
            sums[:PANEL] = 0
            multiply_byte_row(levels, 0, 0, weights, w, sums, 0, 0, quads)
        start, end = panel * PANEL, min(panel * PANEL + PANEL, columns)
        of_column, total, step = zeros[start:end], totals[start:end], scales[start:end]
        target = gates[start:end]
        for i in range(target.size):
            target[i] += _column(sums[i], of_column[i], factor, level, total[i], scale * step[i])
