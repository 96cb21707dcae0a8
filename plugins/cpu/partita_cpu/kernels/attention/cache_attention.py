"""Attention over a cache, of whose places only those that hold keys are read.

Each key and value is read once for all queries of a block. Scores of a block of keys never leave
the processor's cache; the softmax is carried on from block to block (Milakov and Gimelshein,
Online normalizer calculation for softmax, 2018).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.attention.cache_blocks import (
    GROUP,
    KV_HEADS,
    OUTPUTS,
    PLACES,
    QUERIES,
    ROWS,
    SIZE,
    Block,
    Cache,
    Results,
    Terms,
    bias_scores,
    block_at,
    count_blocks,
    keys_of_block,
    seen_keys,
    store_results,
)
from partita_cpu.kernels.attention.cache_elements import CacheKernel, element, pitch, rescale
from partita_cpu.scalar.instructions import add_in_any_order, like, muladd, wide_vectors
from partita_cpu.scalar.math import exp_below_zero, row_maximum

BLOCK = 64
"""Keys of a block."""


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
        table: Sizes, as `cache_blocks` names their places.
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
        queries: Rotated and scaled.
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


def scratch_floats(outputs: int) -> int:
    """Floats that a thread of `attend_cache` needs."""
    return ROWS * (BLOCK + outputs + 2)


attend_kernel = CacheKernel(attend_cache, 2)
"""`attend_cache` for caches of any type."""
