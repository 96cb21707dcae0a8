"""Attention over a cache, of whose places only those that hold keys are read.

Each key and value is read once for all queries of a block. Scores of a block of keys never leave
the processor's cache; the softmax is carried on from block to block (Milakov and Gimelshein,
Online normalizer calculation for softmax, 2018). Where heads are fewer than threads, keys are cut
in parts as well, whose results a second step joins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.attention.cache_elements import CacheKernel, element, pitch, rescale
from partita_cpu.scalar.instructions import add_in_any_order, like, muladd, wide_vectors
from partita_cpu.scalar.math import exp_below_zero, row_maximum, tanh

ROWS = 16
"""Queries, of all heads of a group, that share the reading of a block of keys."""

BLOCK = 64
"""Keys of a block."""

(
    BATCHES,
    KV_HEADS,
    GROUP,
    QUERIES,
    SIZE,
    OUTPUTS,
    PLACES,
    PARTS,
    CAUSAL,
    WINDOW,
    BIASED,
    BIAS_BATCH,
    BIAS_HEAD,
    BIAS_QUERY,
    BIAS_KEYS,
    SINK,
    SINKS,
) = range(17)
"""What the table of `attend_cache` holds. GROUP: heads that share a head of keys and values; SIZE:
of a key; OUTPUTS: size of a value; PLACES: of the cache; PARTS: in which keys are cut; WINDOW: most
keys that a query sees, -1 for all; BIASED: whether there is a bias, then its strides, and how many
keys it has; SINK: whether a number of its own is in each softmax; SINKS: whether heads have theirs.
"""


class Cache(NamedTuple):
    """Keys and values, (B, KV_HEADS, places, SIZE or OUTPUTS), flat; int8 with rows' scales."""

    keys: KernelArray
    values: KernelArray


class Terms(NamedTuple):
    """What is added to scores, and what the softmax of each head has besides them; both flat."""

    bias: KernelArray
    sinks: KernelArray


class Block(NamedTuple):
    """Some queries of a head of keys and values, and one part of the keys.

    Attributes:
        head: Batch and head of keys and values.
        first: The first query, counted through all heads of the group.
        rows: Queries.
        part: Of the keys.
    """

    head: int
    first: int
    rows: int
    part: int


class Results(NamedTuple):
    """The result, (B, S, heads, OUTPUTS), flat.

    And of parts of the keys, per query and head: the result, the largest score, the sum.
    """

    y: KernelArray
    parts: KernelArray


@loop
def attend_cache(
    cache: Cache,
    queries: Array,
    spans: Array,
    terms: Terms,
    results: Results,
    scratch: Array,
    table: Array,
    cap: float,
    tid: int,
    nt: int,
) -> None:
    """``y = softmax(queries @ keys.T + bias) @ values``, for the keys that each query sees.

    Args:
        cache: Keys and values.
        queries: Scaled, (B, KV_HEADS, S, GROUP, SIZE), flat.
        spans: See `cache_spans`.
        terms: Not read unless the table says so.
        results: The result, or those of parts if keys are cut in several.
        scratch: `scratch_floats` for each thread.
        table: As above.
        cap: Bound of the scores through tanh; 0 for none.
        tid: This thread.
        nt: All threads; they share heads, blocks of queries, and parts of keys.
    """
    outputs = table[OUTPUTS]
    room = ROWS * (BLOCK + outputs + 2)
    threads = min(nt, scratch.size // room)
    if tid >= threads:
        return
    units = count_blocks(table)
    mine = scratch[tid * room : (tid + 1) * room]
    for unit in range(units * tid // threads, units * (tid + 1) // threads):
        chosen = block_at(unit, table)
        _attend_block(cache, queries, spans, terms, mine, table, cap, chosen)
        store_results(terms, results, mine[ROWS * BLOCK :], table, chosen)


@loop(inline=True)
def count_blocks(table: Any) -> Any:
    """Blocks of all heads of keys and values, times the parts of these."""
    blocks = -(-table[QUERIES] * table[GROUP] // ROWS)
    return table[BATCHES] * table[KV_HEADS] * blocks * table[PARTS]


@loop(inline=True)
def block_at(unit: Any, table: Any) -> Any:
    """One of them."""
    parts, rows = table[PARTS], table[QUERIES] * table[GROUP]
    blocks = -(-rows // ROWS)
    block, head = unit // parts % blocks, unit // parts // blocks
    first = rows * block // blocks
    return Block(head, first, rows * (block + 1) // blocks - first, unit % parts)


@loop(inline=True)
def keys_of_block(spans: Any, table: Any, chosen: Any) -> Any:
    """The first key of a block's part of those that any of its queries sees; the one behind."""
    head, first, count, part = chosen
    batch, group = head // table[KV_HEADS], table[GROUP]
    low, _ = seen_keys(spans, batch, first // group, table)
    high = spans[2 * batch + 1]
    if table[CAUSAL]:
        high = min(high, spans[2 * batch] + (first + count - 1) // group + 1)
    length = max(high - low, 0)
    return low + length * part // table[PARTS], low + length * (part + 1) // table[PARTS]


@loop
def _attend_block(
    cache: Cache,
    queries: Array,
    spans: Array,
    terms: Terms,
    mine: Array,
    table: Array,
    cap: float,
    chosen: Block,
) -> None:
    """Some queries and one part of their keys; results, largest scores and sums stay in `mine`.

    Args:
        cache: Keys and values.
        queries: Turned and scaled.
        spans: For each sequence, the keys that there are.
        terms: What is added to scores.
        mine: Memory of this thread.
        table: Sizes.
        cap: The bound of scores; 0 for none.
        chosen: The head, its queries, and the part of their keys.
    """
    wide_vectors()
    head, first, count, _ = chosen
    size, outputs, group = table[SIZE], table[OUTPUTS], table[GROUP]
    lines, sums_of_values = mine[: ROWS * BLOCK], mine[ROWS * BLOCK :]
    tops, sums = sums_of_values[ROWS * outputs :], sums_of_values[ROWS * (outputs + 1) :]
    sums_of_values[: count * outputs] = 0
    tops[:count] = -np.inf
    sums[:count] = 0
    batch = head // table[KV_HEADS]
    start, stop = keys_of_block(spans, table, chosen)
    place = head * table[PLACES]
    for key in range(start, stop, BLOCK):
        end = min(key + BLOCK, stop)
        r = 0
        while r < count:
            sees = seen_keys(spans, batch, (first + r) // group, table)
            both = r + 1 < count and (first + r) % group != group - 1
            low, high = max(sees[0], key), min(sees[1], end)
            if low < high:
                row = (head * table[QUERIES] * group + first + r) * size
                step = pitch(cache.keys, size)
                keys = cache.keys[(place + low) * step : (place + high) * step]
                line = lines[r * BLOCK : r * BLOCK + high - low]
                if both:
                    other = lines[(r + 1) * BLOCK : (r + 1) * BLOCK + high - low]
                    pair = queries[row : row + 2 * size]
                    _scores_of_pair(pair[:size], pair[size:], keys, line, other)
                else:
                    _scores(queries[row : row + size], keys, line)
                step = pitch(cache.values, outputs)
                values = cache.values[(place + low) * step : (place + high) * step]
                made = sums_of_values[r * outputs : (r + 2) * outputs]
                rescale(line, keys, size)
                bias_scores(line, terms, table, cap, head, first + r, low)
                _update_softmax(line, made[:outputs], tops, sums, r)
                rescale(line, values, outputs)
                if both:
                    rescale(other, keys, size)
                    bias_scores(other, terms, table, cap, head, first + r + 1, low)
                    _update_softmax(other, made[outputs:], tops, sums, r + 1)
                    rescale(other, values, outputs)
                    _add_values_of_pair(line, other, values, made[:outputs], made[outputs:])
                else:
                    _add_values(line, values, made[:outputs])
            r += 2 if both else 1


@loop(inline=True)
def bias_scores(line: Any, terms: Any, table: Any, cap: Any, head: Any, row: Any, low: Any) -> None:
    """Bounds the scores of a query, and adds its bias to them.

    Args:
        line: The scores.
        terms: Has the bias.
        table: Sizes, and whether there is a bias.
        cap: Bound of the scores through tanh; 0 for none.
        head: The head of keys, counted through all batches.
        row: The row: of each query, the heads that share these keys lie side by side.
        low: The first key.
    """
    if cap != 0:
        bound_scores(line, cap)
    if table[BIASED]:
        add_bias(terms, table, head, row, low, line)


@loop(inline=True)
def seen_keys(spans: Any, batch: Any, s: Any, table: Any) -> Any:
    """The first key that a query sees, and the one behind the last; none if it is padding.

    Args:
        spans: For each row of the batch, keys before this run and behind it; see `cache_spans`.
        batch: Number of the row.
        s: Number of the query in this run.
        table: The step's numbers, of which `CAUSAL` and `WINDOW` are read.
    """
    before, after = spans[2 * batch], spans[2 * batch + 1]
    place = before + s + 1
    high = after if place <= after else 0
    if table[CAUSAL]:
        high = min(high, place)
    low = max(high - table[WINDOW], 0) if table[WINDOW] >= 0 else 0
    return low, high


@loop(inline=True)
def _four_rows(rows: Any, start: Any, step: Any, size: Any) -> Any:
    """Four rows of a flat cache from a place on, one behind the other."""
    return (
        rows[start : start + size],
        rows[start + step : start + step + size],
        rows[start + 2 * step : start + 2 * step + size],
        rows[start + 3 * step : start + 3 * step + size],
    )


@jit(reassociate=True, inline=True, counts=False)
def _scores(q: Any, keys: Any, line: Any) -> None:
    """The products of a query with keys, four at a time."""
    size, n = q.size, line.size
    step = pitch(keys, size)
    j = 0
    while j + 4 <= n:
        k0, k1, k2, k3 = _four_rows(keys, j * step, step, size)
        s0, s1 = np.float32(0), np.float32(0)
        s2, s3 = np.float32(0), np.float32(0)
        for i in range(size):
            s0 += q[i] * element(k0[i])
            s1 += q[i] * element(k1[i])
            s2 += q[i] * element(k2[i])
            s3 += q[i] * element(k3[i])
        line[j], line[j + 1], line[j + 2], line[j + 3] = s0, s1, s2, s3
        j += 4
    while j < n:
        k0 = keys[j * step : j * step + size]
        s0 = np.float32(0)
        for i in range(size):
            s0 += q[i] * element(k0[i])
        line[j] = s0
        j += 1


@jit(reassociate=True, inline=True, counts=False)
def _scores_of_pair(q: Any, other: Any, keys: Any, line: Any, lines: Any) -> None:
    """The products of two queries with keys, each of which is read once."""
    size, n = q.size, line.size
    step = pitch(keys, size)
    j = 0
    while j + 4 <= n:
        k0, k1, k2, k3 = _four_rows(keys, j * step, step, size)
        s0, s1, s2, s3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        t0, t1, t2, t3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for i in range(size):
            x0, x1, x2, x3 = element(k0[i]), element(k1[i]), element(k2[i]), element(k3[i])
            s0 += q[i] * x0
            s1 += q[i] * x1
            s2 += q[i] * x2
            s3 += q[i] * x3
            t0 += other[i] * x0
            t1 += other[i] * x1
            t2 += other[i] * x2
            t3 += other[i] * x3
        line[j], line[j + 1], line[j + 2], line[j + 3] = s0, s1, s2, s3
        lines[j], lines[j + 1], lines[j + 2], lines[j + 3] = t0, t1, t2, t3
        j += 4
    if j < n:
        _scores(q, keys[j * step :], line[j:])
        _scores(other, keys[j * step :], lines[j:])


@loop(inline=True)
def bound_scores(line: Any, cap: Any) -> None:
    """Keeps scores within a bound, through tanh."""
    bound = like(line[0], cap)
    for j in range(line.size):
        line[j] = bound * tanh(line[j] / bound)


@loop(inline=True)
def add_bias(terms: Any, table: Any, head: Any, row: Any, low: Any, line: Any) -> None:
    """Adds its bias to the scores of a query.

    Args:
        terms: Has the bias.
        table: Sizes and strides.
        head: The head of keys, counted through all batches.
        row: The row: of each query, the heads that share these keys lie side by side.
        low: The first key.
        line: The scores.
    """
    group, kv_heads = table[GROUP], table[KV_HEADS]
    batch, number = head // kv_heads, head % kv_heads * group + row % group
    start = batch * table[BIAS_BATCH] + number * table[BIAS_HEAD]
    start += row // group * table[BIAS_QUERY] + low
    bias = terms.bias[start : start + line.size]
    for j in range(line.size):
        line[j] += bias[j]


@loop(inline=True)
def _update_softmax(line: Any, made: Any, tops: Any, sums: Any, r: Any) -> None:
    """The softmax of scores as far as it is known; what was added up before is made to fit it."""
    old, top = tops[r], row_maximum(line)
    top = old if old > top else top
    if top == np.float32(-np.inf):
        line[:] = 0
        return
    if top != old:
        share = exp_below_zero(old - top)
        sums[r] *= share
        for i in range(made.size):
            made[i] *= share
        tops[r] = top
    total = like(top, 0)
    for j in range(line.size):
        value = exp_below_zero(line[j] - top)
        line[j] = value
        total = add_in_any_order(total, value)
    sums[r] += total


@loop(inline=True)
def _add_values(line: Any, values: Any, made: Any) -> None:
    """Adds values times their weights, four at a time."""
    size, n = made.size, line.size
    step = pitch(values, size)
    j = 0
    while j + 4 <= n:
        v0, v1, v2, v3 = _four_rows(values, j * step, step, size)
        w0, w1, w2, w3 = line[j], line[j + 1], line[j + 2], line[j + 3]
        for i in range(size):
            near = muladd(w1, element(v1[i]), w0 * element(v0[i]))
            far = muladd(w3, element(v3[i]), w2 * element(v2[i]))
            made[i] += near + far
        j += 4
    while j < n:
        v0, w0 = values[j * step : j * step + size], line[j]
        for i in range(size):
            made[i] = muladd(w0, element(v0[i]), made[i])
        j += 1


@loop(inline=True)
def _add_values_of_pair(line: Any, lines: Any, values: Any, made: Any, others: Any) -> None:
    """Adds values times their weights for two queries; each value is read once."""
    size, n = made.size, line.size
    step = pitch(values, size)
    j = 0
    while j + 4 <= n:
        v0, v1, v2, v3 = _four_rows(values, j * step, step, size)
        w0, w1, w2, w3 = line[j], line[j + 1], line[j + 2], line[j + 3]
        u0, u1, u2, u3 = lines[j], lines[j + 1], lines[j + 2], lines[j + 3]
        for i in range(size):
            x0, x1, x2, x3 = element(v0[i]), element(v1[i]), element(v2[i]), element(v3[i])
            made[i] += muladd(w1, x1, w0 * x0) + muladd(w3, x3, w2 * x2)
            others[i] += muladd(u1, x1, u0 * x0) + muladd(u3, x3, u2 * x2)
        j += 4
    if j < n:
        _add_values(line[j:], values[j * step :], made)
        _add_values(lines[j:], values[j * step :], others)


@loop
def store_results(terms: Terms, results: Results, made: Array, table: Array, chosen: Block) -> None:
    """Brings what was made of a block to its place: the result's, or that of its part.

    Args:
        terms: See `attend_cache`.
        results: Likewise.
        made: Sums of values, behind `ROWS` of them largest scores, then sums of the softmax.
        table: See `attend_cache`.
        chosen: The block.
    """
    head, first, count, part = chosen
    outputs, group, parts = table[OUTPUTS], table[GROUP], table[PARTS]
    tops, sums = made[ROWS * outputs :], made[ROWS * (outputs + 1) :]
    for r in range(count):
        row = made[r * outputs : (r + 1) * outputs]
        if parts == 1:
            start = result_place(head, first + r, table)
            target = results.y[start : start + outputs]
            finish_row(row, tops[r], sums[r], terms, head, first + r, table, target)
            continue
        start = ((head * table[QUERIES] * group + first + r) * parts + part) * (outputs + 2)
        target = results.parts[start : start + outputs + 2]
        for i in range(outputs):
            target[i] = row[i]
        target[outputs], target[outputs + 1] = tops[r], sums[r]


@loop(inline=True)
def result_place(head: Any, row: Any, table: Any) -> Any:
    """Where the result of a query and head starts; `row` counts both within a head of keys."""
    group, kv_heads, outputs = table[GROUP], table[KV_HEADS], table[OUTPUTS]
    batch, number = head // kv_heads, head % kv_heads * group + row % group
    return ((batch * table[QUERIES] + row // group) * kv_heads * group + number) * outputs


@loop(inline=True)
def finish_row(
    row: Any, top: Any, total: Any, terms: Any, head: Any, number: Any, table: Any, target: Any
) -> None:
    """Divides by the sum of the softmax; 0 for a query that sees no key.

    Args:
        row: OUTPUTS sums of values, by the powers of their scores.
        top: The largest score.
        total: The sum of the powers.
        terms: Has what the softmax counts besides the keys.
        head: Batch and head of keys and values.
        number: The query, counted through all heads of the group.
        table: As of `attend_cache`.
        target: Receives the result.
    """
    if total == 0:
        target[:] = 0
        return
    share = like(row[0], 1)
    if table[SINK]:
        group = table[GROUP]
        own = like(row[0], 0)
        if table[SINKS]:
            own = terms.sinks[head % table[KV_HEADS] * group + number % group]
        highest = own if own > top else top
        share = exp_below_zero(top - highest)
        total = total * share + exp_below_zero(own - highest)
    share /= total
    for i in range(target.size):
        target[i] = row[i] * share


@loop
def join_parts(terms: Terms, results: Results, table: Array, tid: int, nt: int) -> None:
    """Joins what `attend_cache` has left of parts of the keys."""
    outputs, parts = table[OUTPUTS], table[PARTS]
    rows = table[QUERIES] * table[GROUP]
    units = table[BATCHES] * table[KV_HEADS] * rows
    pitch = outputs + 2
    for unit in range(units * tid // nt, units * (tid + 1) // nt):
        found = results.parts[unit * parts * pitch : (unit + 1) * parts * pitch]
        row, top, total = found[:outputs], found[outputs], found[outputs + 1]
        for part in range(1, parts):
            other = found[part * pitch : (part + 1) * pitch]
            if other[outputs + 1] == 0:
                continue
            highest = other[outputs] if other[outputs] > top else top
            mine, its = exp_below_zero(top - highest), exp_below_zero(other[outputs] - highest)
            for i in range(outputs):
                row[i] = row[i] * mine + other[i] * its
            total = total * mine + other[outputs + 1] * its
            top = highest
        start = result_place(unit // rows, unit % rows, table)
        target = results.y[start : start + outputs]
        finish_row(row, top, total, terms, unit // rows, unit % rows, table, target)


def scratch_floats(outputs: int) -> int:
    """Floats that a thread of `attend_cache` needs."""
    return ROWS * (BLOCK + outputs + 2)


attend_kernel = CacheKernel(attend_cache, 2)
"""`attend_cache` for caches of any type."""
