"""Attention of many queries over a cache, by the tiles of matrix products.

Keys and values of a block are packed once for all tiles of queries of a chunk. Scores of a tile
never leave the processor's cache, and the softmax is carried on from block to block, as in
`cache_blocks`. Of a block that lies across the diagonal only the part below it is computed.

Where products are in bfloat16, queries, keys, values and what the softmax makes of scores are
rounded to pairs of them, of neighbours along what is added up; sums and the softmax are in float32.
On AMX they can be sums of two bfloat16 each, whose three larger products are added up. Infinity and
NaN have no second parts: queries that meet them are computed anew in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.attention_kernels import ATTENTION_SLOTS, SOFTMAX
from partita_cpu.gemm.nonfinite import LARGEST
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE
from partita_cpu.jit.intrinsics.address_array import sizes_at
from partita_cpu.jit.intrinsics.address_call import address, call_plain, call_products, call_softmax
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.attention.cache_blocks import (
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
from partita_cpu.kernels.attention.cache_elements import CacheKernel
from partita_cpu.kernels.attention.new_heads import NewHeads
from partita_cpu.kernels.attention.prefill.packing import (
    pack_keys,
    pack_pairs_of_keys,
    pack_pairs_of_values,
    pack_queries,
    pack_values,
)
from partita_cpu.kernels.attention.prefill.tile_memory import (
    COLUMNS,
    FIELDS,
    KEYS,
    PLANES,
    ROWS,
    UNIT,
    Scratch,
    floats_of,
    key_pairs,
    most_tiles,
    query_words,
    round_up,
    scratch_of,
)
from partita_cpu.llvm.attention.attend import STATES
from partita_cpu.llvm.copies.transpose_block import SIDE
from partita_cpu.scalar.instructions import wide_vectors

SHARES = 4
"""Chunks that each thread gets at least, as far as tiles suffice; they see unequally many keys."""


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


@loop
def attend_tiles(
    cache: Cache,
    queries: NewHeads,
    spans: Array,
    terms: Terms,
    target: Target,
    kernels: Array,
    table: Array,
    cap: float,
    tid: int,
    nt: int,
) -> None:
    """``y = softmax(queries @ keys.T + bias) @ values`` of many queries, by tiles of products.

    Queries are rotated here, chunk by chunk, so that they are in a cache when they are multiplied.

    Threads take turns with chunks, those that see the most keys first; who was last in a turn is
    first in the next one.

    Args:
        cache: Keys and values.
        queries: As they are given.
        spans: Which keys there are; see `cache_spans`.
        terms: What is added to scores; not read unless the table says so.
        target: The result, and scratch memory of `floats_of` floats for each thread.
        kernels: `attention_kernels.attention_kernels`; where factors are sums of two bfloat16,
            those for floats lie behind them.
        table: Sizes, as `cache_blocks` names their places; likewise those for floats behind.
        cap: Bound of the scores through tanh; 0 for none.
        tid: This thread.
        nt: All threads.
    """
    wide_vectors()
    y, scratch = target.y, target.scratch
    most, floats = table[ROWS], 0
    for start in range(0, table.size, FIELDS):
        floats = max(floats, floats_of(table[start : start + FIELDS]))
    threads = min(nt, scratch.size // floats)
    if tid >= threads:
        return
    made = tid * floats
    made += -(address(scratch) // 4 + made) % 16
    own = scratch_of(scratch, made, table)
    rows = table[QUERIES] * table[GROUP]
    tiles = -(-rows // most)
    heads = table[BATCHES] * table[KV_HEADS]
    chunks = -(-tiles // max(1, min(most_tiles(most), tiles * heads // (SHARES * threads))))
    while heads * chunks % threads != 0 and chunks < tiles:
        chunks += 1  # as many for each thread
    if kernels[CONFIGURE]:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    for turn in range(-(-heads * chunks // threads)):
        unit = turn * threads + (tid if turn % 2 == 0 else threads - 1 - tid)
        if unit < heads * chunks:
            number = chunks - 1 - unit // heads
            first, behind = tiles * number // chunks, tiles * (number + 1) // chunks
            low, high = rows * first // tiles, rows * behind // tiles
            chunk = Chunk(unit % heads, low, high, behind - first)
            if _attend_chunk(cache, queries, spans, terms, own, kernels, table, cap, chunk):
                _store_results(terms, y, own, table, chunk)
                continue
            of_floats = table[FIELDS:]
            again = scratch_of(scratch, made, of_floats)
            chunk = Chunk(unit % heads, low, high, -(-(high - low) // of_floats[ROWS]))
            others = kernels[ATTENTION_SLOTS:]
            _attend_chunk(cache, queries, spans, terms, again, others, of_floats, cap, chunk)
            _store_results(terms, y, again, of_floats, chunk)
    if kernels[RELEASE]:
        call_plain(kernels[RELEASE], (0,))


@loop
def _attend_chunk(
    cache: Cache,
    queries: NewHeads,
    spans: Array,
    terms: Terms,
    own: Scratch,
    kernels: Array,
    table: Array,
    cap: float,
    chunk: Chunk,
) -> Any:
    """Goes through the keys that any query of a chunk sees, block by block.

    Args:
        cache: Keys and values.
        queries: As they are given.
        spans: For each sequence, the keys that there are.
        terms: What is added to scores.
        own: Memory of this thread.
        kernels: Addresses of kernels.
        table: Sizes.
        cap: The bound of scores; 0 for none.
        chunk: The queries.

    Returns:
        Whether all of it can be computed so; there is no result if not.
    """
    size, wide, rows = table[SIZE], table[COLUMNS], chunk.behind - chunk.first
    beyond, planes, unit = round_up(table[OUTPUTS], wide), table[PLANES], table[UNIT]
    apart = own.seen.size // 2
    length, depth = query_words(size, planes, unit), key_pairs(size, unit) if planes else size
    words = length if planes else round_up(size, SIDE)
    bounds = chunk.head, chunk.first, chunk.behind
    largest = pack_queries(queries, spans, *bounds, kernels, table, own)
    for tile in range(chunk.tiles):
        state = STATES * apart * tile
        own.states[state : state + apart] = -np.inf
        own.states[state + apart : state + 2 * apart] = 0
    scores, line = address(own.scores), 4 * KEYS
    powers = scores + (table[ROWS] * line if planes > 1 else 0)
    start, stop = _seen_by_rows(spans, chunk.head, chunk.first, chunk.behind, table)
    if start >= stop:
        own.sums[: rows * beyond] = 0
    for key in range(start, stop, KEYS):
        end = min(key + KEYS, stop)
        place = chunk.head * table[PLACES] + key
        if planes:
            found = pack_pairs_of_keys(cache.keys, place, end - key, kernels, table, own)
            largest = max(largest, found)
            found = pack_pairs_of_values(cache.values, place, end - key, kernels, table, own)
            largest = max(largest, found)
        else:
            pack_keys(cache.keys, place, end - key, kernels, table, own)
            pack_values(cache.values, place, end - key, table, own)
        if planes > 1 and largest >= LARGEST:
            return False
        for tile in range(chunk.tiles):
            low, high = _rows_of_tile(tile, rows, chunk.tiles, table)
            first, count = chunk.first + low, high - low
            sees = _seen_by_rows(spans, chunk.head, first, first + count, table)
            columns = min(end, sees[1]) - key
            if columns <= max(sees[0] - key, 0):
                if key == start:
                    own.sums[low * beyond : high * beyond] = 0
                continue
            multiply = kernels[count]
            packed = address(own.keys), 4 * words * wide, -(-columns // wide)
            parts = 4 * depth, 4 * depth * wide
            left = address(own.queries) + 4 * low * length, 4 * length, depth
            call_products(multiply, (*left, *packed, scores, line, 0, *parts))
            state = address(own.states) + 4 * STATES * apart * tile
            block = chunk.head, key, end, columns
            _softmax_of_tile(spans, terms, own, kernels, table, cap, first, count, block, state)
            packed = address(own.values), 4 * KEYS * wide, beyond // wide
            parts = line // 2, 2 * KEYS * wide
            shares = 0 if key == start else state + 8 * apart  # the first block has no sums yet
            sums = address(own.sums) + 4 * low * beyond, 4 * beyond, shares
            steps = key_pairs(columns, unit) if planes else columns
            call_products(multiply, (powers, line, steps, *packed, *sums, *parts))
    return True


@loop(inline=True)
def _rows_of_tile(tile: Any, rows: Any, tiles: Any, table: Any) -> Any:
    """The first of a chunk's queries that is in a tile, and the one behind the last.

    Tiles of AMX write whole halves of their rows: those behind a tile are its followers'.
    """
    if table[UNIT] > 1:
        return tile * table[ROWS], min((tile + 1) * table[ROWS], rows)
    return rows * tile // tiles, rows * (tile + 1) // tiles


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
    """The softmax of the scores of some queries as far as it is known.

    Args:
        spans: For each sequence, the keys that there are.
        terms: What is added to scores.
        own: Memory of this thread.
        kernels: Addresses of kernels.
        table: Sizes.
        cap: The bound of scores; 0 for none.
        first: The first of the queries.
        count: How many.
        block: The head, its first key and the one behind the last, and columns with padding.
        state: Address of the softmax so far.
    """
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
def _store_results(terms: Terms, y: Array, own: Scratch, table: Array, chunk: Chunk) -> None:
    """Brings what was added up to its place in the result."""
    outputs = table[OUTPUTS]
    beyond = round_up(outputs, table[COLUMNS])
    rows, apart = chunk.behind - chunk.first, own.seen.size // 2
    for tile in range(chunk.tiles):
        low, high = _rows_of_tile(tile, rows, chunk.tiles, table)
        for row in range(low, high):
            known = STATES * apart * tile + row - low
            top, total = own.states[known], own.states[known + apart]
            made = own.sums[row * beyond : row * beyond + outputs]
            place = result_place(chunk.head, chunk.first + row, table)
            target = y[place : place + outputs]
            finish_row(made, top, total, terms, chunk.head, chunk.first + row, table, target)


prefill_kernel = CacheKernel(attend_tiles, 2)
"""`attend_tiles` for caches of any type."""
