"""Attention of many queries over a cache, by the tiles of matrix products.

Keys and values of a block are packed once for all tiles of queries of a chunk. Scores of a tile
never leave the processor's cache, and the softmax is carried on from block to block, as in
`cache_attention`. Of a block that lies across the diagonal only the part below it is computed.

Where products are in bfloat16, queries, keys, values and what the softmax makes of scores are
rounded to pairs of them, of neighbours along what is added up; sums and the softmax are in float32.
On AMX they can be sums of two bfloat16 each, whose three larger products are added up. Infinity and
NaN have no second parts: queries that meet them are computed anew in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.nonfinite import LARGEST
from partita_cpu.gemm.tile_kernels import (
    ATTENTION_SLOTS,
    CONFIG,
    CONFIGURE,
    NARROW_ROWS,
    RELEASE,
    SOFTMAX,
    TRANSPOSE,
    Arithmetic,
    on_tiles,
    tile_columns,
    tile_rows,
)
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.intrinsics.address_array import floats_at, shorts_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_narrow_rows,
    call_plain,
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
    rows_as_floats,
    scale_at,
)
from partita_cpu.llvm.copies.transpose_block import SIDE
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.attend import STATES, TILE_ROWS, in_pairs
from partita_cpu.llvm.tiles.attend_amx import PAIRS as TILE_PAIRS
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

ROWS, COLUMNS, PLANES, UNIT = 17, 18, 19, 20
"""What the table of `attend_tiles` holds besides that of `attend_cache`: a `TileShape`."""

_FIELDS = 21


class TileShape(NamedTuple):
    """How attention is cut in tiles.

    Attributes:
        rows: Queries of a tile, at most.
        columns: Of a tile.
        planes: Of how many bfloat16 a factor is the sum, whose neighbours are paired; 0 for floats.
        unit: Pairs that are added up together.
    """

    rows: int
    columns: int
    planes: int = 0
    unit: int = 1


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
        scores: Of one tile, (rows, KEYS); behind them powers, if these are sums of two.
        piece: Some keys as floats or pairs, (SIDE, words of a key).
        rounded: Queries as pairs, where products are of these.
        row: `SIDE` keys or values as floats, then as many values as bfloat16.
    """

    sums: KernelArray
    states: KernelArray
    seen: KernelArray
    keys: KernelArray
    values: KernelArray
    scores: KernelArray
    piece: KernelArray
    rounded: KernelArray
    row: KernelArray


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
    first in the next one. `kernels` are `tile_kernels.attention_kernels`. Where factors are sums of
    two bfloat16, kernels and table for floats lie behind both.
    """
    wide_vectors()
    y, scratch = target.y, target.scratch
    most, floats = table[ROWS], 0
    for start in range(0, table.size, _FIELDS):
        floats = max(floats, _floats_of(table[start : start + _FIELDS]))
    threads = min(nt, scratch.size // floats)
    if tid >= threads:
        return
    made = tid * floats
    made += -(address(scratch) // 4 + made) % 16
    own = _scratch_of(scratch, made, table)
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
            of_floats = table[_FIELDS:]
            again = _scratch_of(scratch, made, of_floats)
            chunk = Chunk(unit % heads, low, high, -(-(high - low) // of_floats[ROWS]))
            others = kernels[ATTENTION_SLOTS:]
            _attend_chunk(cache, queries, spans, terms, again, others, of_floats, cap, chunk)
            _store_results(terms, y, again, of_floats, chunk)
    if kernels[RELEASE]:
        call_plain(kernels[RELEASE], (0,))


@loop
def _floats_of(table: Array) -> Any:
    """Floats that a thread needs for such tiles."""
    shape = table[ROWS], table[COLUMNS], table[PLANES], table[UNIT]
    return prefill_floats(table[SIZE], table[OUTPUTS], *shape)


@loop
def _scratch_of(scratch: Array, made: int, table: Array) -> Any:
    """A thread's scratch memory from a place on, for such tiles."""
    most, wide, outputs, planes = table[ROWS], table[COLUMNS], table[OUTPUTS], table[PLANES]
    words, state = _key_words(table[SIZE], planes, table[UNIT]), _round_up(most, wide // VECTORS)
    tiles, length = most_tiles(most), planes * _key_pairs(table[SIZE], table[UNIT])
    keys = made + tiles * most * _round_up(outputs, wide)
    values = keys + KEYS * words
    scores = values + KEYS * _round_up(outputs, wide)
    piece = scores + KEYS * most * max(1, planes)
    seen = piece + SIDE * words
    states = seen + 2 * state
    rounded = states + tiles * STATES * state
    row = rounded + tiles * most * length
    return Scratch(
        scratch[made:keys],
        scratch[states:rounded],
        scratch[seen:states],
        scratch[keys:values],
        scratch[values:scores],
        scratch[scores:piece],
        scratch[piece:seen],
        scratch[rounded:row],
        scratch[row : row + _row_floats(table[SIZE], outputs, planes, wide)],
    )


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
) -> Any:
    """Goes through the keys that any query of a chunk sees, block by block.

    Returns whether all of it can be computed so; there is no result if not.
    """
    size, wide, rows = table[SIZE], table[COLUMNS], chunk.behind - chunk.first
    beyond, planes, unit = _round_up(table[OUTPUTS], wide), table[PLANES], table[UNIT]
    own.sums[: rows * beyond] = 0
    apart = own.seen.size // 2
    first = (chunk.head * table[QUERIES] * table[GROUP] + chunk.first) * size
    a, length, depth, largest = address(queries) + 4 * first, size, size, 0
    words = _round_up(size, SIDE)
    if planes:
        depth = _key_pairs(size, unit)
        length = words = planes * depth
        largest = _round_queries(queries[first : first + rows * size], kernels, table, own.rounded)
        a = address(own.rounded)
    for tile in range(chunk.tiles):
        state = STATES * apart * tile
        own.states[state : state + apart] = -np.inf
        own.states[state + apart : state + 2 * apart] = 0
    scores, line = address(own.scores), 4 * KEYS
    powers = scores + (table[ROWS] * line if planes > 1 else 0)
    start, stop = _seen_by_rows(spans, chunk.head, chunk.first, chunk.behind, table)
    for key in range(start, stop, KEYS):
        end = min(key + KEYS, stop)
        place = chunk.head * table[PLACES] + key
        if planes:
            found = _pack_pairs_of_keys(cache.keys, place, end - key, kernels, table, own)
            largest = max(largest, found)
            found = _pack_pairs_of_values(cache.values, place, end - key, kernels, table, own)
            largest = max(largest, found)
        else:
            _pack_keys(cache.keys, place, end - key, kernels, table, own)
            _pack_values(cache.values, place, end - key, table, own)
        if planes > 1 and largest >= LARGEST:
            return False
        for tile in range(chunk.tiles):
            low, high = _rows_of_tile(tile, rows, chunk.tiles, table)
            first, count = chunk.first + low, high - low
            sees = _seen_by_rows(spans, chunk.head, first, first + count, table)
            columns = min(end, sees[1]) - key
            if columns <= max(sees[0] - key, 0):
                continue
            multiply = kernels[count]
            packed = address(own.keys), 4 * words * wide, -(-columns // wide)
            parts = 4 * depth, 4 * depth * wide
            left = a + 4 * low * length, 4 * length, depth
            call_products(multiply, (*left, *packed, scores, line, 0, *parts))
            state = address(own.states) + 4 * STATES * apart * tile
            block = chunk.head, key, end, columns
            _softmax_of_tile(spans, terms, own, kernels, table, cap, first, count, block, state)
            packed = address(own.values), 4 * KEYS * wide, beyond // wide
            parts = line // 2, 2 * KEYS * wide
            sums = address(own.sums) + 4 * low * beyond, 4 * beyond, state + 8 * apart
            steps = _key_pairs(columns, unit) if planes else columns
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
    """Keys from a place of the cache on, turned: for each block of columns (SIZE, columns)."""
    size, wide = table[SIZE], table[COLUMNS]
    step, side, deep = pitch(keys, size), min(SIDE, wide), _round_up(size, SIDE)
    for first in range(0, count, side):
        for j in range(min(side, count - first)):
            start = (place + first + j) * step
            row = floats_at(address(own.piece) + 4 * j * deep, size)
            _widen(keys[start : start + size], scale_at(keys, start, size), row)
        _turn(first, size, deep, kernels, table, own)


@loop
def _pack_pairs_of_keys(
    keys: Array, place: int, count: int, kernels: Array, table: Array, own: Scratch
) -> Any:
    """The same in pairs of a key's elements, half as many, further parts behind all of them.

    Returns the largest magnitude of an element, as the bits of a float32.
    """
    size, planes, length = table[SIZE], table[PLANES], _key_pairs(table[SIZE], table[UNIT])
    side, largest = min(SIDE, table[COLUMNS]), 0
    room = _key_words(size, planes, table[UNIT])
    for first in range(0, count, side):
        some = min(side, count - first)
        source = rows_as_floats(keys, place + first, some, size, own.row)
        to = address(own.piece), 4 * room
        largest = max(largest, _split(source, some, size, to, 2 * length, kernels))
        _turn(first, planes * length, room, kernels, table, own)
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
        kernels: `tile_kernels.attention_kernels`.

    Returns:
        The largest magnitude of a float as its bits.
    """
    given = (source, 4 * count, rows, count, *to, 2 * length, length)
    return call_narrow_rows(kernels[NARROW_ROWS], given)


@loop(inline=True)
def _turn(first: Any, words: Any, room: Any, kernels: Any, table: Any, own: Any) -> None:
    """Lays out some keys of a block, as wide as the kernel, from their rows in `own.piece`."""
    wide = table[COLUMNS]
    side = min(SIDE, wide)
    deep = _round_up(words, SIDE) if table[PLANES] == 0 else words
    to = address(own.keys) + 4 * (first // wide * deep * wide + first % wide)
    for i in range(0, words, side):
        call_transpose(
            kernels[TRANSPOSE], (address(own.piece) + 4 * i, 4 * room, to + 4 * i * wide, 4 * wide)
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
    values: Array, place: int, count: int, kernels: Array, table: Array, own: Scratch
) -> Any:
    """The same in pairs of two values' elements, half as many; the last may lack its second one.

    Zeros fill up the last unit of pairs; further parts lie behind all pairs of a block. Returns the
    largest magnitude of an element, as the bits of a float32.
    """
    outputs, wide, planes = table[OUTPUTS], table[COLUMNS], table[PLANES]
    beyond, largest, rows = _round_up(outputs, wide), 0, 2 * _key_pairs(count, table[UNIT])
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


@loop
def _round_queries(queries: Array, kernels: Array, table: Array, rounded: Array) -> Any:
    """Queries as pairs of bfloat16, filled up with zeros, further parts behind these.

    Returns the largest magnitude of an element, as the bits of a float32.
    """
    size, length = table[SIZE], 2 * _key_pairs(table[SIZE], table[UNIT])
    to = address(rounded), 2 * table[PLANES] * length
    return _split(address(queries), queries.size // size, size, to, length, kernels)


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
        low, high = _rows_of_tile(tile, rows, chunk.tiles, table)
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
def _key_pairs(size: Any, unit: Any) -> Any:
    """Pairs that so many elements make, in whole units."""
    return _round_up((size + 1) // 2, unit)


@register_jitable
def _key_words(size: Any, planes: Any, unit: Any) -> Any:
    """Words of a key that is laid out."""
    return max(_round_up(size, SIDE), planes * _key_pairs(size, unit))


@register_jitable
def _row_floats(size: Any, outputs: Any, planes: Any, wide: Any) -> Any:
    """Floats that some keys or values take, and as many values as bfloat16."""
    return SIDE * (max(size, outputs) + planes * _round_up(outputs, wide) // 2)


@register_jitable
def most_tiles(rows: Any) -> Any:
    """Tiles of so many rows in a chunk, at most."""
    return -(-CHUNK_ROWS // rows)


@register_jitable
def prefill_floats(size: Any, outputs: Any, rows: Any, columns: Any, planes: Any, unit: Any) -> Any:
    """Floats that a thread of `attend_tiles` needs for tiles of a shape."""
    beyond, words = _round_up(outputs, columns), _key_words(size, planes, unit)
    state = _round_up(rows, columns // VECTORS)
    of_row = beyond + planes * _key_pairs(size, unit)
    kept = most_tiles(rows) * (rows * of_row + STATES * state) + 2 * state
    kept += _row_floats(size, outputs, planes, columns)
    return kept + KEYS * (words + beyond + rows * max(1, planes)) + SIDE * words + _LINE


def tile_shapes(level: Level, arithmetic: Arithmetic) -> list[TileShape]:
    """How attention is cut: first as products of some arithmetic are, then for what these lack."""
    columns = tile_columns(level)
    plain = TileShape(tile_rows(level, Arithmetic.F32), columns)
    if on_tiles(level, arithmetic) and arithmetic.planes <= 2:
        tiles = TileShape(TILE_ROWS, columns, arithmetic.planes, TILE_PAIRS)
        return [tiles] if arithmetic.planes == 1 else [tiles, plain]
    if arithmetic is Arithmetic.BF16 and in_pairs(level):
        return [plain._replace(planes=1)]
    return [plain]


prefill_kernel = CacheKernel(attend_tiles, 2)
"""`attend_tiles` for caches of any type."""
