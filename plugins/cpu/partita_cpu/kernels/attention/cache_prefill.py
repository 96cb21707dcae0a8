"""Attention of many queries over a cache, by the tiles of matrix products.

Keys and values of a block are packed once for all tiles of queries of a chunk. Scores of a tile
never leave the processor's cache, and the softmax is carried on from block to block, as in
`cache_attention`. Of a block that lies across the diagonal only the part below it is computed.

Where products are in bfloat16, queries, keys, values and what the softmax makes of scores are
rounded to pairs of them, of neighbours along what is added up; sums and the softmax are in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.tile_kernels import (
    SOFTMAX,
    TRANSPOSE,
    Arithmetic,
    tile_columns,
    tile_rows,
)
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.intrinsics.address_array import floats_at, shorts_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_products,
    call_softmax,
    call_transpose,
)
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
    scale_at,
)
from partita_cpu.kernels.half import float32_to_bfloat16
from partita_cpu.llvm.copies.transpose_block import SIDE
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.attend import STATES
from partita_cpu.llvm.tiles.fma import VECTORS
from partita_cpu.scalar.math import wide_vectors

KEYS = 256
"""Of a block; a multiple of every tile's columns."""

CHUNK_ROWS = 512
"""Rows of a chunk, about: they share what is packed, and with it fill the second-level cache."""

_LINE = 32
"""Floats that aligning scratch memory may cost."""

SHARES = 4
"""Chunks that each thread gets at least, as far as tiles suffice; they see unequally many keys."""

ROWS, COLUMNS, PAIRS = 17, 18, 19
"""What the table of `attend_tiles` holds besides that of `attend_cache`: the size of a tile, and
whether products are of pairs of bfloat16."""


class Target(NamedTuple):
    """Where results go, and memory to compute in; both flat."""

    y: KernelArray
    scratch: KernelArray


class Chunk(NamedTuple):
    """Some tiles of the queries of a head of keys and values.

    Attributes:
        head: Batch and head of keys and values.
        first: The first query, counted through all heads of the group.
        behind: The one behind the last.
        tiles: In how many they are cut.
    """

    head: int
    first: int
    behind: int
    tiles: int


class Scratch(NamedTuple):
    """Scratch memory of a thread.

    Attributes:
        sums: Sums of values for each query, OUTPUTS rounded up to whole tiles.
        states: For each tile what `attend.SOFTMAX_PARAMETERS` says.
        seen: Of one tile, likewise.
        keys: A block of keys, packed: for each block of columns (SIZE, columns).
        values: Values, packed: for each block of columns (KEYS, columns).
        scores: Of one tile, (rows, KEYS).
        piece: Some keys as floats or pairs, (SIDE, SIZE).
        rounded: Queries as pairs, where products are of these.
    """

    sums: KernelArray
    states: KernelArray
    seen: KernelArray
    keys: KernelArray
    values: KernelArray
    scores: KernelArray
    piece: KernelArray
    rounded: KernelArray


@loop
def attend_tiles(
    cache: Cache,
    queries: Array,
    spans: Array,
    terms: Terms,
    target: Target,
    kernels: Array,
    table: Array,
    cap: float,
    tid: int,
    nt: int,
) -> None:
    """As `cache_attention.attend_cache`, which describes the arguments, with keys in one part.

    Threads take turns with chunks, those that see the most keys first; who was last in a turn is
    first in the next one. `kernels` are `tile_kernels.attention_kernels`.
    """
    wide_vectors()
    y, scratch = target.y, target.scratch
    most, wide, outputs = table[ROWS], table[COLUMNS], table[OUTPUTS]
    floats = prefill_floats(table[SIZE], outputs, most, wide)
    threads = min(nt, scratch.size // floats)
    if tid >= threads:
        return
    made = tid * floats
    made += -(address(scratch) // 4 + made) % 16
    deep, state = _round_up(table[SIZE], SIDE), _round_up(most, wide // VECTORS)
    keys = made + most_tiles(most) * most * _round_up(outputs, wide)
    values = keys + KEYS * deep
    scores = values + KEYS * _round_up(outputs, wide)
    piece = scores + KEYS * most
    seen = piece + SIDE * deep
    states = seen + 2 * state
    rounded = states + most_tiles(most) * STATES * state
    own = Scratch(
        scratch[made:keys],
        scratch[states:rounded],
        scratch[seen:states],
        scratch[keys:values],
        scratch[values:scores],
        scratch[scores:piece],
        scratch[piece:seen],
        scratch[rounded : rounded + most_tiles(most) * most * _pairs(table[SIZE])],
    )
    rows = table[QUERIES] * table[GROUP]
    tiles = -(-rows // most)
    heads = table[BATCHES] * table[KV_HEADS]
    chunks = -(-tiles // max(1, min(most_tiles(most), tiles * heads // (SHARES * threads))))
    while heads * chunks % threads != 0 and chunks < tiles:
        chunks += 1  # as many for each thread
    for turn in range(-(-heads * chunks // threads)):
        unit = turn * threads + (tid if turn % 2 == 0 else threads - 1 - tid)
        if unit < heads * chunks:
            number = chunks - 1 - unit // heads
            first, behind = tiles * number // chunks, tiles * (number + 1) // chunks
            low, high = rows * first // tiles, rows * behind // tiles
            chunk = Chunk(unit % heads, low, high, behind - first)
            _attend_chunk(cache, queries, spans, terms, own, kernels, table, cap, chunk)
            _store_results(terms, y, own, table, chunk)


@loop
def _attend_chunk(
    cache: Cache,
    queries: Array,
    spans: Array,
    terms: Terms,
    own: Scratch,
    kernels: Array,
    table: Array,
    cap: float,
    chunk: Chunk,
) -> None:
    """Goes through the keys that any query of a chunk sees, block by block."""
    size, wide, rows = table[SIZE], table[COLUMNS], chunk.behind - chunk.first
    beyond, deep = _round_up(table[OUTPUTS], wide), _round_up(size, SIDE)
    own.sums[: rows * beyond] = 0
    apart, pairs = own.seen.size // 2, table[PAIRS]
    a = address(queries) + 4 * (chunk.head * table[QUERIES] * table[GROUP] + chunk.first) * size
    length = size
    if pairs:
        first = (chunk.head * table[QUERIES] * table[GROUP] + chunk.first) * size
        length = _pairs(size)
        _round_queries(queries[first : first + rows * size], size, own.rounded)
        a = address(own.rounded)
    for tile in range(chunk.tiles):
        state = STATES * apart * tile
        own.states[state : state + apart] = -np.inf
        own.states[state + apart : state + 2 * apart] = 0
    scores, line = address(own.scores), 4 * KEYS
    start, stop = _seen_by_rows(spans, chunk.head, chunk.first, chunk.behind, table)
    for key in range(start, stop, KEYS):
        end = min(key + KEYS, stop)
        place = chunk.head * table[PLACES] + key
        _pack_keys(cache.keys, place, end - key, kernels, table, own)
        if pairs:
            _pack_pairs_of_values(cache.values, place, end - key, table, own)
        else:
            _pack_values(cache.values, place, end - key, table, own)
        for tile in range(chunk.tiles):
            low, high = rows * tile // chunk.tiles, rows * (tile + 1) // chunk.tiles
            first, count = chunk.first + low, high - low
            sees = _seen_by_rows(spans, chunk.head, first, first + count, table)
            columns = min(end, sees[1]) - key
            if columns <= max(sees[0] - key, 0):
                continue
            packed = address(own.keys), 4 * deep * wide, -(-columns // wide)
            of_tile = a + 4 * low * length, 4 * length, length
            call_products(kernels[count], (*of_tile, *packed, scores, line, 0))
            state = address(own.states) + 4 * STATES * apart * tile
            block = chunk.head, key, end, columns
            _softmax_of_tile(spans, terms, own, kernels, table, cap, first, count, block, state)
            packed = address(own.values), 4 * KEYS * wide, beyond // wide
            to = address(own.sums) + 4 * low * beyond
            steps = _pairs(columns) if pairs else columns
            call_products(
                kernels[count], (scores, line, steps, *packed, to, 4 * beyond, state + 8 * apart)
            )


@loop
def _softmax_of_tile(
    spans: Array,
    terms: Terms,
    own: Scratch,
    kernels: Array,
    table: Array,
    cap: float,
    first: int,
    count: int,
    block: Any,
    state: int,
) -> None:
    """The softmax of the scores of some queries as far as it is known."""
    head, key, end, columns = block
    group, batch = table[GROUP], head // table[KV_HEADS]
    s, member = first // group, first % group
    seen, apart = sizes_at(address(own.seen), own.seen.size), own.seen.size // 2
    for row in range(count):
        low, high = seen_keys(spans, batch, s, table)
        low = max(low - key, 0)
        high = max(min(high, end) - key, low)
        if (cap != 0 or table[BIASED]) and low < high:
            line = own.scores[row * KEYS + low : row * KEYS + high]
            if cap != 0:
                bound_scores(line, cap)
            if table[BIASED]:
                add_bias(terms, table, head, first + row, key + low, line)
        seen[row], seen[apart + row] = low, high - low
        member += 1
        if member == group:
            s, member = s + 1, 0
    scores, places = address(own.scores), address(own.seen)
    call_softmax(kernels[SOFTMAX], (scores, 4 * KEYS, count, columns, places, state))


@loop(inline=True)
def _seen_by_rows(spans: Any, head: Any, first: Any, behind: Any, table: Any) -> Any:
    """The first key that any of some queries sees, and the one behind the last."""
    batch = head // table[KV_HEADS]
    low, _ = seen_keys(spans, batch, first // table[GROUP], table)
    high = spans[2 * batch + 1]
    if table[CAUSAL]:
        high = min(high, spans[2 * batch] + (behind - 1) // table[GROUP] + 1)
    return low, high


@loop
def _pack_keys(
    keys: Array, place: int, count: int, kernels: Array, table: Array, own: Scratch
) -> None:
    """Keys from a place of the cache on, turned: for each block of columns (SIZE, columns).

    Or pairs of a key's elements, half as many.
    """
    size, wide = table[SIZE], table[COLUMNS]
    step, side, deep = pitch(keys, size), min(SIDE, wide), _round_up(size, SIDE)
    for first in range(0, count, side):
        for j in range(min(side, count - first)):
            start = (place + first + j) * step
            source, scale = keys[start : start + size], scale_at(keys, start, size)
            row = address(own.piece) + 4 * j * deep
            if table[PAIRS]:
                shorts = shorts_at(row, 2 * _pairs(size))
                for i in range(size):
                    shorts[i] = float32_to_bfloat16(element(source[i]) * scale)
                if size % 2:
                    shorts[size] = 0
            else:
                _widen(source, scale, floats_at(row, size))
        to = address(own.keys) + 4 * (first // wide * deep * wide + first % wide)
        for i in range(0, _pairs(size) if table[PAIRS] else size, side):
            call_transpose(
                kernels[TRANSPOSE],
                (address(own.piece) + 4 * i, 4 * deep, to + 4 * i * wide, 4 * wide),
            )


@loop
def _pack_values(values: Array, place: int, count: int, table: Array, own: Scratch) -> None:
    """Values from a place of the cache on: for each block of columns (KEYS, columns)."""
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
def _pack_pairs_of_values(
    values: Array, place: int, count: int, table: Array, own: Scratch
) -> None:
    """The same in pairs of two values' elements, half as many; the last may lack its second one."""
    outputs, wide = table[OUTPUTS], table[COLUMNS]
    step = pitch(values, outputs)
    for pair in range(_pairs(count)):
        start = (place + 2 * pair) * step
        there = 2 * pair + 1 < count
        after = start + step if there else start
        scale, other = scale_at(values, start, outputs), scale_at(values, after, outputs)
        for block in range(-(-outputs // wide)):
            first = block * wide
            width = min(wide, outputs - first)
            row = sizes_at(address(own.values) + 4 * (block * KEYS + pair) * wide, wide)
            one = values[start + first : start + first + width]
            two = values[after + first : after + first + width]
            for i in range(width):
                low = float32_to_bfloat16(element(one[i]) * scale)
                high = float32_to_bfloat16(element(two[i]) * other)
                row[i] = np.int32(low) | np.int32(np.int32(high) << np.int32(16))
            if not there:
                for i in range(width):
                    row[i] &= np.int32(0xFFFF)
            row[width:] = 0


@loop
def _round_queries(queries: Array, size: int, rounded: Array) -> None:
    """Queries as pairs of bfloat16, a zero behind an odd number of elements."""
    wide = 2 * _pairs(size)
    for first in range(queries.size // size):
        row = shorts_at(address(rounded) + 2 * first * wide, wide)
        source = queries[first * size : (first + 1) * size]
        for i in range(size):
            row[i] = float32_to_bfloat16(source[i])
        if size % 2:
            row[size] = 0


@loop(inline=True)
def _widen(source: Any, scale: Any, row: Any) -> None:
    """Elements of a row of a cache as floats."""
    for i in range(source.size):
        row[i] = element(source[i]) * scale


@loop
def _store_results(terms: Terms, y: Array, own: Scratch, table: Array, chunk: Chunk) -> None:
    """Brings what was added up to its place in the result."""
    outputs = table[OUTPUTS]
    beyond = _round_up(outputs, table[COLUMNS])
    rows, apart = chunk.behind - chunk.first, own.seen.size // 2
    for tile in range(chunk.tiles):
        low, high = rows * tile // chunk.tiles, rows * (tile + 1) // chunk.tiles
        for row in range(low, high):
            known = STATES * apart * tile + row - low
            top, total = own.states[known], own.states[known + apart]
            made = own.sums[row * beyond : row * beyond + outputs]
            place = result_place(chunk.head, chunk.first + row, table)
            target = y[place : place + outputs]
            finish_row(made, top, total, terms, chunk.head, chunk.first + row, table, target)


@register_jitable
def _round_up(count: Any, unit: Any) -> Any:
    """A count rounded up to whole units."""
    return -(-count // unit) * unit


@register_jitable
def _pairs(count: Any) -> Any:
    """Pairs that so many elements make."""
    return (count + 1) // 2


@register_jitable
def most_tiles(rows: Any) -> Any:
    """Tiles of so many rows in a chunk, at most."""
    return max(1, CHUNK_ROWS // rows)


@register_jitable
def prefill_floats(size: Any, outputs: Any, rows: Any, columns: Any) -> Any:
    """Floats that a thread of `attend_tiles` needs."""
    beyond, deep = _round_up(outputs, columns), _round_up(size, SIDE)
    state = _round_up(rows, columns // VECTORS)
    kept = most_tiles(rows) * (rows * (beyond + _pairs(size)) + STATES * state) + 2 * state
    return kept + KEYS * (deep + beyond + rows) + SIDE * deep + _LINE


def tile_size(level: Level) -> tuple[int, int]:
    """Most rows, and the columns, of a tile."""
    return tile_rows(level, Arithmetic.F32), tile_columns(level)


prefill_kernel = CacheKernel(attend_tiles, 2)
"""`attend_tiles` for caches of any type."""
