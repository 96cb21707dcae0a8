"""Packs queries, keys and values for the tiles of attention: as floats, or as pairs of bfloat16.

Pairs are of neighbours along what is added up: two elements of a key, two values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.attention_kernels import TRANSPOSE
from partita_cpu.gemm.tile_kernels import NARROW_ROWS
from partita_cpu.jit.intrinsics.address_array import floats_at, shorts_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import address, call_narrow_rows, call_transpose
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.attention.cache_blocks import (
    GROUP,
    KV_HEADS,
    OUTPUTS,
    QUERIES,
    SIZE,
)
from partita_cpu.kernels.attention.cache_elements import (
    element,
    pitch,
    rows_as_floats,
    scale_at,
)
from partita_cpu.kernels.attention.new_heads import (
    POSITIONED,
    NewHeads,
    head_place,
    rotate_head,
)
from partita_cpu.kernels.attention.prefill.tile_memory import (
    COLUMNS,
    KEYS,
    PLANES,
    UNIT,
    Scratch,
    key_pairs,
    key_words,
    round_up,
)
from partita_cpu.llvm.copies.transpose_block import SIDE


@loop
def pack_queries(
    given: NewHeads,
    spans: Array,
    head: int,
    first: int,
    behind: int,
    kernels: Array,
    table: Array,
    own: Scratch,
) -> Any:
    """Rotates some queries of a head of keys; rounds them to pairs where products are of these.

    Pairs are of bfloat16, filled up with zeros; further parts lie behind these.

    Args:
        given: Queries as they are given.
        spans: See `cache_spans`.
        head: Batch and head of keys.
        first: The first query, counted through all heads of the group.
        behind: The one behind the last.
        kernels: `attention_kernels.attention_kernels`.
        table: Sizes, as for `attend_tiles`.
        own: The thread's memory; `own.queries` is written.

    Returns:
        The largest magnitude of an element that was rounded, as the bits of a float32.
    """
    size, planes, largest = table[SIZE], table[PLANES], 0
    if planes == 0:
        _rotate_queries(given, spans, head, first, behind, table, own.queries)
        return largest
    length = 2 * key_pairs(size, table[UNIT])
    for low in range(first, behind, SIDE):
        high = min(low + SIDE, behind)
        _rotate_queries(given, spans, head, low, high, table, own.row)
        to = address(own.queries) + 2 * planes * length * (low - first), 2 * planes * length
        largest = max(largest, _split(address(own.row), high - low, size, to, length, kernels))
    return largest


@loop
def _rotate_queries(
    given: NewHeads, spans: Array, head: int, first: int, behind: int, table: Array, rows: Array
) -> None:
    """Writes queries as floats, one behind the other; those of padding are zeros.

    Args:
        given: Queries as they are given, and what rotates them.
        spans: For each sequence, tokens before the new ones, and all of them.
        head: The head of keys.
        first: The first of its queries.
        behind: Behind the last one.
        table: Sizes.
        rows: Gets them.
    """
    size, count, members = table[SIZE], table[QUERIES], table[GROUP]
    batch, group = head // table[KV_HEADS], head % table[KV_HEADS]
    before = spans[2 * batch]
    new = min(count, spans[2 * batch + 1] - before)
    s, member = first // members, first % members
    for row in range(behind - first):
        target = rows[row * size : (row + 1) * size]
        if s < new:
            position = batch * count + s if given.table[POSITIONED] else before + s
            rotate_head(given, head_place(given.table, batch, group, member, s), position, target)
        else:
            target[:] = 0
        member += 1
        if member == members:
            s, member = s + 1, 0


@loop
def pack_keys(
    keys: Array, place: int, count: int, kernels: Array, table: Array, own: Scratch
) -> None:
    """Packs keys as floats, transposed: for each block of columns (SIZE, columns).

    Args:
        keys: The cache, flat.
        place: The first one's place in it.
        count: How many keys.
        kernels: `attention_kernels.attention_kernels`.
        table: Sizes, as for `attend_tiles`.
        own: The thread's memory; `own.keys` is written.
    """
    size, wide = table[SIZE], table[COLUMNS]
    step, side, deep = pitch(keys, size), min(SIDE, wide), round_up(size, SIDE)
    for first in range(0, count, side):
        for j in range(min(side, count - first)):
            start = (place + first + j) * step
            row = floats_at(address(own.piece) + 4 * j * deep, size)
            _widen(keys[start : start + size], scale_at(keys, start, size), row)
        _lay_out(first, size, deep, kernels, table, own)


@loop
def pack_pairs_of_keys(
    keys: Array, place: int, count: int, kernels: Array, table: Array, own: Scratch
) -> Any:
    """As `pack_keys`, in pairs of a key's elements, half as many.

    Where factors are sums of several bfloat16, the further ones lie behind all of the first.

    Args:
        keys: The cache, flat.
        place: The first one's place in it.
        count: How many keys.
        kernels: `attention_kernels.attention_kernels`.
        table: Sizes.
        own: The thread's memory.

    Returns:
        The largest magnitude of an element, as the bits of a float32.
    """
    size, planes, length = table[SIZE], table[PLANES], key_pairs(table[SIZE], table[UNIT])
    side, largest = min(SIDE, table[COLUMNS]), 0
    room = key_words(size, planes, table[UNIT])
    for first in range(0, count, side):
        some = min(side, count - first)
        source = rows_as_floats(keys, place + first, some, size, own.row)
        to = address(own.piece), 4 * room
        largest = max(largest, _split(source, some, size, to, 2 * length, kernels))
        _lay_out(first, planes * length, room, kernels, table, own)
    return largest


@loop
def pack_values(values: Array, place: int, count: int, table: Array, own: Scratch) -> None:
    """Packs values as floats: for each block of columns (KEYS, columns).

    Args:
        values: The cache, flat.
        place: The first one's place in it.
        count: How many values.
        table: Sizes, as for `attend_tiles`.
        own: The thread's memory; `own.values` is written.
    """
    outputs, wide = table[OUTPUTS], table[COLUMNS]
    step = pitch(values, outputs)
    for j in range(count):
        start = (place + j) * step
        scale = scale_at(values, start, outputs)
        for block in range(-(-outputs // wide)):
            first = block * wide
            width = min(wide, outputs - first)
            row = floats_at(address(own.values) + 4 * (block * KEYS + j) * wide, wide)
            _widen(values[start + first : start + first + width], scale, row)
            for i in range(width, wide):
                row[i] = 0


@loop
def pack_pairs_of_values(
    values: Array, place: int, count: int, kernels: Array, table: Array, own: Scratch
) -> Any:
    """As `pack_values`, in pairs of two values' elements, half as many.

    Zeros fill up the last unit of pairs. Where factors are sums of several bfloat16, the further
    ones lie behind all pairs of a block.

    Args:
        values: The cache, flat.
        place: The first one's place in it.
        count: How many values.
        kernels: `attention_kernels.attention_kernels`.
        table: Sizes.
        own: The thread's memory.

    Returns:
        The largest magnitude of an element, as the bits of a float32.
    """
    outputs, wide, planes = table[OUTPUTS], table[COLUMNS], table[PLANES]
    beyond, largest, rows = round_up(outputs, wide), 0, 2 * key_pairs(count, table[UNIT])
    length = planes * beyond
    halves = address(own.row) + 4 * SIDE * max(table[SIZE], outputs)
    for first in range(0, rows, SIDE):
        there, stop = min(SIDE, max(count - first, 0)), min(SIDE, rows - first)
        source = rows_as_floats(values, place + first, there, outputs, own.row)
        to = halves, 2 * length
        largest = max(largest, _split(source, there, outputs, to, beyond, kernels))
        lacking = shorts_at(halves + 2 * length * there, length * (stop - there))
        for i in range(lacking.size):
            lacking[i] = 0
        for pair in range(stop // 2):
            for plane in range(planes):
                for block in range(0, beyond, wide):
                    behind = halves + 2 * (2 * pair * length + plane * beyond + block)
                    ones, others = shorts_at(behind, wide), shorts_at(behind + 2 * length, wide)
                    at = block * KEYS + (plane * KEYS // 2 + first // 2 + pair) * wide
                    row = sizes_at(address(own.values) + 4 * at, wide)
                    for i in range(wide):
                        row[i] = np.int32(ones[i]) | np.int32(np.int32(others[i]) << np.int32(16))
    return largest


@loop(inline=True)
def _split(source: Any, rows: Any, count: Any, to: Any, length: Any, kernels: Any) -> Any:
    """Rows of floats as bfloat16, zeros behind them up to a length; then further parts likewise.

    Args:
        source: Address of rows that lie one behind the other.
        rows: How many.
        count: Floats of a row.
        to: Address of the first result, and bytes to the next one.
        length: Of each part of a result.
        kernels: `attention_kernels.attention_kernels`.

    Returns:
        The largest magnitude of a float as its bits.
    """
    given = (source, 4 * count, rows, count, *to, 2 * length, length)
    return call_narrow_rows(kernels[NARROW_ROWS], given)


@loop(inline=True)
def _lay_out(first: Any, words: Any, room: Any, kernels: Any, table: Any, own: Any) -> None:
    """Lays out some keys of a block, as wide as the kernel, from their rows in `own.piece`.

    Args:
        first: The first key.
        words: Of a key.
        room: Words from key to key in `own.piece`.
        kernels: Addresses of kernels.
        table: Sizes.
        own: Memory of this thread.
    """
    wide = table[COLUMNS]
    side = min(SIDE, wide)
    deep = round_up(words, SIDE) if table[PLANES] == 0 else words
    to = address(own.keys) + 4 * (first // wide * deep * wide + first % wide)
    for i in range(0, words, side):
        call_transpose(
            kernels[TRANSPOSE], (address(own.piece) + 4 * i, 4 * room, to + 4 * i * wide, 4 * wide)
        )


@loop(inline=True)
def _widen(source: Any, scale: Any, row: Any) -> None:
    """Elements of a row of a cache as floats."""
    for i in range(source.size):
        row[i] = element(source[i]) * scale
