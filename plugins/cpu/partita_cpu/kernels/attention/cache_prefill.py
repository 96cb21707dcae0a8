"""Attention of many queries over a cache, by the tiles of matrix products.

Keys and values of a block are packed once for all tiles of queries of a chunk. Scores of a tile
never leave the processor's cache, and the softmax is carried on from block to block, as in
`cache_attention`. Of a block that lies across the diagonal only the part below it is computed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.tile_kernels import Arithmetic, tile_columns, tile_rows
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.intrinsics.address_call import address, call_tile
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.attention.cache_attention import (
    BATCHES,
    BIASED,
    CAUSAL,
    GROUP,
    KV_HEADS,
    OUTPUTS,
    PLACES,
    QUERIES,
    SIZE,
    Cache,
    Terms,
    add_bias,
    bound_scores,
    finish_row,
    result_place,
    seen_keys,
)
from partita_cpu.kernels.attention.cache_elements import (
    CacheKernel,
    element,
    pitch,
    rescale,
    scale_at,
)
from partita_cpu.llvm.levels import Level
from partita_cpu.scalar.math import (
    add_in_any_order,
    exp_below_zero,
    like,
    row_maximum,
    wide_vectors,
)

KEYS = 256
"""Of a block; a multiple of every tile's columns."""

CHUNK_ROWS = 512
"""Rows of a chunk, about: packing keys and values costs as much as some 25 rows that meet them."""

_LINE = 32
"""Floats that aligning scratch memory may cost."""

SHARES = 4
"""Chunks that each thread gets at least, as far as tiles suffice; they see unequally many keys."""

ROWS, COLUMNS = 17, 18
"""What the table of `attend_tiles` holds besides that of `attend_cache`: the size of a tile."""


class Kernels(NamedTuple):
    """`table.tile_kernels` for float32, and one zero."""

    tiles: KernelArray
    offsets: KernelArray


class Target(NamedTuple):
    """Where results go, and memory to compute in; both flat."""

    y: KernelArray
    scratch: KernelArray


class Chunk(NamedTuple):
    """Some tiles of the queries of a head of keys and values."""

    head: int
    first: int
    tiles: int


class Room(NamedTuple):
    """Scratch memory of a thread.

    Attributes:
        made: Sums of values for each tile, in blocks of columns.
        tops: The largest score of each query.
        sums: The sum of its softmax.
        keys: A block of keys, packed: for each block of columns (SIZE, columns).
        values: Values, packed: for each block of columns (KEYS, columns).
        scores: Of one tile, (rows, KEYS).
        zeros: As many as a tile has columns.
    """

    made: KernelArray
    tops: KernelArray
    sums: KernelArray
    keys: KernelArray
    values: KernelArray
    scores: KernelArray
    zeros: KernelArray


@loop
def attend_tiles(
    cache: Cache,
    queries: Array,
    spans: Array,
    terms: Terms,
    target: Target,
    kernels: Kernels,
    table: Array,
    cap: float,
    tid: int,
    nt: int,
) -> None:
    """As `cache_attention.attend_cache`, which describes the arguments, with keys in one part.

    Threads take turns with chunks, those that see the most keys first; who was last in a turn is
    first in the next one.
    """
    wide_vectors()
    y, scratch = target.y, target.scratch
    most, wide, outputs = table[ROWS], table[COLUMNS], table[OUTPUTS]
    floats = prefill_floats(table[SIZE], outputs, most, wide)
    threads = min(nt, scratch.size // floats)
    if tid >= threads:
        return
    start = tid * floats
    start += -(address(scratch) // 4 + start) % 16
    beyond = -(-outputs // wide) * wide
    rows = most_tiles(most) * most
    made = start + rows * beyond
    keys = made + KEYS * table[SIZE]
    values = keys + KEYS * beyond
    scores = values + KEYS * most
    zeros = scores + wide
    tops = zeros + rows
    room = Room(
        scratch[start:made],
        scratch[zeros:tops],
        scratch[tops : tops + rows],
        scratch[made:keys],
        scratch[keys:values],
        scratch[values:scores],
        scratch[scores:zeros],
    )
    room.zeros[:] = 0
    tiles = -(-(table[QUERIES] * table[GROUP]) // most)
    heads = table[BATCHES] * table[KV_HEADS]
    chunks = -(-tiles // max(1, min(most_tiles(most), tiles * heads // (SHARES * threads))))
    while heads * chunks % threads != 0 and chunks < tiles:
        chunks += 1  # as many for each thread
    for turn in range(-(-heads * chunks // threads)):
        unit = turn * threads + (tid if turn % 2 == 0 else threads - 1 - tid)
        if unit < heads * chunks:
            number = chunks - 1 - unit // heads
            first, behind = tiles * number // chunks, tiles * (number + 1) // chunks
            chunk = Chunk(unit % heads, first, behind - first)
            _attend_chunk(cache, queries, spans, terms, room, kernels, table, cap, chunk)
            _deliver(terms, y, room, table, chunk)


@loop
def _attend_chunk(
    cache: Cache,
    queries: Array,
    spans: Array,
    terms: Terms,
    room: Room,
    kernels: Kernels,
    table: Array,
    cap: float,
    chunk: Chunk,
) -> None:
    """Goes through the keys that any query of a chunk sees, block by block."""
    count = chunk.tiles * table[ROWS]
    room.made[: count * (-(-table[OUTPUTS] // table[COLUMNS]) * table[COLUMNS])] = 0
    room.tops[:count] = -np.inf
    room.sums[:count] = 0
    first, _ = _rows_of(chunk, 0, table)
    _, last = _rows_of(chunk, chunk.tiles - 1, table)
    start, stop = _seen_by_rows(spans, chunk, first, last, table)
    for key in range(start, stop, KEYS):
        end = min(key + KEYS, stop)
        place = chunk.head * table[PLACES] + key
        _pack_keys(cache.keys, place, end - key, table, room.keys)
        _pack_values(cache.values, place, end - key, table, room.values)
        for tile in range(chunk.tiles):
            low, high = _rows_of(chunk, tile, table)
            sees_from, sees_to = _seen_by_rows(spans, chunk, low, high, table)
            columns = min(end, sees_to) - key
            if columns <= max(sees_from - key, 0):
                continue
            _score_tile(queries, room, kernels, table, chunk, tile, columns)
            for row in range(low, high):
                line = room.scores[(row - low) * KEYS : (row - low) * KEYS + columns]
                batch = chunk.head // table[KV_HEADS]
                sees_from, sees_to = seen_keys(spans, batch, row // table[GROUP], table)
                sees_from = max(sees_from - key, 0)
                sees_to = max(min(sees_to, end) - key, sees_from)
                seen = line[sees_from:sees_to]
                if cap != 0 and seen.size:
                    bound_scores(seen, cap)
                if table[BIASED]:
                    add_bias(terms, table, chunk.head, row, key + sees_from, seen)
                _carry_on(seen, room, table, tile, row - low)
                line[:sees_from] = 0
                line[sees_to:] = 0
            _mix_tile(room, kernels, table, tile, high - low, columns)


@loop(inline=True)
def _rows_of(chunk: Any, tile: Any, table: Any) -> Any:
    """The first query of a tile, and the one behind its last."""
    rows = table[QUERIES] * table[GROUP]
    tiles = -(-rows // table[ROWS])
    number = chunk.first + tile
    return rows * number // tiles, rows * (number + 1) // tiles


@loop(inline=True)
def _seen_by_rows(spans: Any, chunk: Any, first: Any, last: Any, table: Any) -> Any:
    """The first key that any of some queries sees, and the one behind the last."""
    batch = chunk.head // table[KV_HEADS]
    low, _ = seen_keys(spans, batch, first // table[GROUP], table)
    high = spans[2 * batch + 1]
    if table[CAUSAL]:
        high = min(high, spans[2 * batch] + (last - 1) // table[GROUP] + 1)
    return low, high


@loop
def _pack_keys(keys: Array, place: int, count: int, table: Array, packed: Array) -> None:
    """Keys from a place of the cache on, turned: for each block of columns (SIZE, columns)."""
    size, wide = table[SIZE], table[COLUMNS]
    step = pitch(keys, size)
    for block in range(-(-count // wide)):
        first = block * wide
        width = min(wide, count - first)
        for i in range(size):
            row = packed[(block * size + i) * wide : (block * size + i + 1) * wide]
            source = (place + first) * step + i
            for j in range(width):
                row[j] = element(keys[source + j * step])
            rescale(row[:width], keys[(place + first) * step :], size)
            row[width:] = 0


@loop
def _pack_values(values: Array, place: int, count: int, table: Array, packed: Array) -> None:
    """Values from a place of the cache on: for each block of columns (KEYS, columns)."""
    outputs, wide = table[OUTPUTS], table[COLUMNS]
    step = pitch(values, outputs)
    for block in range(-(-outputs // wide)):
        first = block * wide
        width = min(wide, outputs - first)
        for j in range(count):
            row = packed[(block * KEYS + j) * wide : (block * KEYS + j + 1) * wide]
            start = (place + j) * step
            scale, source = scale_at(values, start, outputs), values[start + first :]
            for i in range(width):
                row[i] = element(source[i]) * scale
            row[width:] = 0


@loop
def _score_tile(
    queries: Array,
    room: Room,
    kernels: Kernels,
    table: Array,
    chunk: Chunk,
    tile: int,
    columns: int,
) -> None:
    """The products of a tile of queries with the first keys of a block."""
    size, wide = table[SIZE], table[COLUMNS]
    low, high = _rows_of(chunk, tile, table)
    rows = table[QUERIES] * table[GROUP]
    a = address(queries) + 4 * (chunk.head * rows + low) * size
    least, most = np.float32(-np.inf), np.float32(np.inf)
    for block in range(-(-columns // wide)):
        b = address(room.keys) + 4 * block * size * wide
        to = address(room.scores) + 4 * block * wide
        finish = (to, address(room.zeros), 0, to, 4 * KEYS, wide, least, most, 0)
        call_tile(
            kernels.tiles[high - low],
            (a, 4 * size, address(kernels.offsets), 1, size, b, 0, high - low, 0, b, *finish),
        )


@loop
def _carry_on(seen: Array, room: Room, table: Array, tile: int, row: int) -> None:
    """The softmax of a query's scores as far as it is known; what was added up before fits it."""
    if seen.size == 0:
        return
    place = tile * table[ROWS] + row
    old, top = room.tops[place], row_maximum(seen)
    top = old if old > top else top
    if top == np.float32(-np.inf):
        seen[:] = 0
        return
    wide = table[COLUMNS]
    if top != old:
        share = exp_below_zero(old - top)
        room.sums[place] *= share
        for block in range(-(-table[OUTPUTS] // wide)):
            start = _place_of_sums(table, tile, block) + row * wide
            made = room.made[start : start + wide]
            for i in range(wide):
                made[i] *= share
        room.tops[place] = top
    total = like(top, 0)
    for j in range(seen.size):
        value = exp_below_zero(seen[j] - top)
        seen[j] = value
        total = add_in_any_order(total, value)
    room.sums[place] += total


@loop(inline=True)
def _place_of_sums(table: Any, tile: Any, block: Any) -> Any:
    """Where the sums of a tile and block of columns are."""
    blocks = -(-table[OUTPUTS] // table[COLUMNS])
    return (tile * blocks + block) * table[ROWS] * table[COLUMNS]


@loop
def _mix_tile(
    room: Room, kernels: Kernels, table: Array, tile: int, rows: int, columns: int
) -> None:
    """Adds values of a block, times their shares."""
    wide = table[COLUMNS]
    least, most = np.float32(-np.inf), np.float32(np.inf)
    for block in range(-(-table[OUTPUTS] // wide)):
        b = address(room.values) + 4 * block * KEYS * wide
        sums = address(room.made) + 4 * _place_of_sums(table, tile, block)
        a = address(room.scores)
        finish = (sums, address(room.zeros), 0, 0, 0, wide, least, most, 0)
        call_tile(
            kernels.tiles[rows],
            (a, 4 * KEYS, address(kernels.offsets), 1, columns, b, 0, rows, sums, b, *finish),
        )


@loop
def _deliver(terms: Terms, y: Array, room: Room, table: Array, chunk: Chunk) -> None:
    """Brings what was added up to its place in the result."""
    outputs, wide = table[OUTPUTS], table[COLUMNS]
    for tile in range(chunk.tiles):
        low, high = _rows_of(chunk, tile, table)
        for row in range(low, high):
            place = result_place(chunk.head, row, table)
            known = tile * table[ROWS] + row - low
            top, total = room.tops[known], room.sums[known]
            for block in range(-(-outputs // wide)):
                first = block * wide
                width = min(wide, outputs - first)
                start = _place_of_sums(table, tile, block) + (row - low) * wide
                made = room.made[start : start + width]
                target = y[place + first : place + first + width]
                finish_row(made, top, total, terms, chunk.head, row, table, target)


@register_jitable
def most_tiles(rows: Any) -> Any:
    """Tiles of so many rows in a chunk, at most."""
    return max(1, CHUNK_ROWS // rows)


@register_jitable
def prefill_floats(size: Any, outputs: Any, rows: Any, columns: Any) -> Any:
    """Floats that a thread of `attend_tiles` needs."""
    beyond = -(-outputs // columns) * columns
    kept = most_tiles(rows) * rows * (beyond + 2) + KEYS * (size + beyond + rows) + columns
    return kept + _LINE


def tile_size(level: Level) -> tuple[int, int]:
    """Most rows, and the columns, of a tile."""
    return tile_rows(level, Arithmetic.F32), tile_columns(level)


prefill_kernel = CacheKernel(attend_tiles, 2)
"""`attend_tiles` for caches of any type."""
