"""Attention of few queries over a cache, by kernels that read its rows as they lie.

As in `cache_blocks`, scores of a block of keys stay in the processor's cache and the softmax is
carried on from block to block. Heads of a group share what is read of a key or value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.attention_kernels import MOST_QUERIES, SCORES, SOFTMAX
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.intrinsics.address_array import sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_scores,
    call_softmax,
    call_sums,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.attention.cache_blocks import (
    BIASED,
    GROUP,
    KV_HEADS,
    OUTPUTS,
    PLACES,
    QUERIES,
    ROWS,
    SIZE,
    TABLE_FIELDS,
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
from partita_cpu.kernels.attention.cache_elements import CacheKernel, pitch

KEYS = 256
"""Of a block."""

_LINE = KEYS + 16
"""Floats from the scores of one query to those of the next: kernels write whole vectors."""

ELEMENT_BYTES = TABLE_FIELDS
"""What the table of `attend_few` holds besides that of `cache_blocks`: bytes of an element of the
cache."""


class Kernels(NamedTuple):
    """`attention_kernels.few_query_kernels`, and flat memory: `decode_floats` for each thread."""

    addresses: KernelArray
    scratch: KernelArray


@loop
def attend_few(
    cache: Cache,
    queries: Array,
    spans: Array,
    terms: Terms,
    results: Results,
    given: Kernels,
    table: Array,
    cap: float,
    tid: int,
    nt: int,
) -> None:
    """``y = softmax(queries @ keys.T + bias) @ values`` of few queries, by kernels in vectors.

    Args:
        cache: Keys and values.
        queries: Scaled, (B, KV_HEADS, S, GROUP, SIZE), flat.
        spans: Which keys there are; see `cache_spans`.
        terms: What is added to scores; not read unless the table says so.
        results: The result, or those of parts if keys are cut in several.
        given: The kernels' addresses, and `decode_floats` of scratch memory for each thread.
        table: Sizes, as `cache_blocks` names their places.
        cap: Bound of the scores through tanh; 0 for none.
        tid: This thread.
        nt: All threads; they share heads, blocks of queries, and parts of keys.
    """
    kernels, scratch, outputs = given.addresses, given.scratch, table[OUTPUTS]
    room = decode_floats(outputs)
    threads = min(nt, scratch.size // room)
    if tid >= threads:
        return
    units = count_blocks(table)
    mine = scratch[tid * room : (tid + 1) * room]
    for unit in range(units * tid // threads, units * (tid + 1) // threads):
        chosen = block_at(unit, table)
        _attend_block(cache, queries, spans, terms, mine, kernels, table, cap, chosen)
        store_results(terms, results, mine[ROWS * _LINE :], table, chosen)


@loop
def _attend_block(
    cache: Cache,
    queries: Array,
    spans: Array,
    terms: Terms,
    mine: Array,
    kernels: Array,
    table: Array,
    cap: float,
    chosen: Block,
) -> None:
    """Some queries and one part of their keys; behind scores the results stay in `mine`.

    Args:
        cache: Keys and values.
        queries: Rotated and scaled.
        spans: For each sequence, the keys that there are.
        terms: What is added to scores.
        mine: Memory of this thread.
        kernels: Addresses of kernels.
        table: Sizes.
        cap: The bound of scores; 0 for none.
        chosen: The head, its queries, and the part of their keys.
    """
    head, first, count, _ = chosen
    size, outputs, group, batch = table[SIZE], table[OUTPUTS], table[GROUP], head // table[KV_HEADS]
    made = mine[ROWS * _LINE :]
    made[: count * outputs] = 0
    made[ROWS * outputs : ROWS * (outputs + 1)] = -np.inf
    made[ROWS * (outputs + 1) : ROWS * (outputs + 2)] = 0
    lines, line, sums = address(mine), 4 * _LINE, address(made)
    state, shares = sums + 4 * ROWS * outputs, sums + 4 * ROWS * (outputs + 2)
    seen = sizes_at(sums + 4 * ROWS * (outputs + 3), 2 * ROWS)
    q = address(queries) + 4 * (head * table[QUERIES] * group + first) * size
    key_bytes = pitch(cache.keys, size) * table[ELEMENT_BYTES]
    value_bytes = pitch(cache.values, outputs) * table[ELEMENT_BYTES]
    keys = address(cache.keys) + head * table[PLACES] * key_bytes
    values = address(cache.values) + head * table[PLACES] * value_bytes
    most = kernels[MOST_QUERIES]
    start, stop = keys_of_block(spans, table, chosen)
    for key in range(start, stop, KEYS):
        end = min(key + KEYS, stop)
        r = 0
        while r < count:
            some = _heads_of_query(first + r, count - r, group, most)
            low, high = seen_keys(spans, batch, (first + r) // group, table)
            low = max(low, key)
            there = max(min(high, end) - low, 0)
            for row in range(r, r + some):
                seen[row], seen[ROWS + row] = low - key, there
            if there:
                to = lines + r * line + 4 * (low - key)
                rows = keys + low * key_bytes, key_bytes, there
                call_scores(kernels[SCORES + some - 1], (q + 4 * r * size, size, *rows, to, line))
                if cap != 0 or table[BIASED]:
                    for row in range(r, r + some):
                        begin = row * _LINE + low - key
                        scores = mine[begin : begin + there]
                        bias_scores(scores, terms, table, cap, head, first + row, low)
            r += some
        call_softmax(kernels[SOFTMAX], (lines, line, count, end - key, address(seen), state))
        r = 0
        while r < count:
            some = _heads_of_query(first + r, count - r, group, most)
            low, there = seen[r], seen[ROWS + r]
            if there:
                weights = lines + r * line + 4 * low, line, there
                rows = values + (key + low) * value_bytes, value_bytes, outputs
                to = sums + 4 * r * outputs, shares + 4 * r
                call_sums(kernels[SCORES + most + some - 1], (*weights, *rows, *to))
            r += some


@loop(inline=True)
def _heads_of_query(row: Any, left: Any, group: Any, most: Any) -> Any:
    """How many rows from one on are heads of the same query, and go together."""
    return min(group - row % group, left, most)


@register_jitable
def decode_floats(outputs: Any) -> Any:
    """Floats that a thread of `attend_few` needs, of whole lines of the cache.

    Scores; sums of values; of each query largest score, sum of the softmax and share; two numbers
    that say which keys it sees.
    """
    return ROWS * (_LINE + outputs + 5)


decode_kernel = CacheKernel(attend_few, 2)
"""`attend_few` for caches of any type."""
