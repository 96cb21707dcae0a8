"""Blocks of attention over a cache: ranges of queries and keys, and their partial results.

What computes a block, by loops or by kernels of a level, leaves the sums of values for each of its
queries, the largest score, and the sum of the softmax. Where heads are fewer than threads, keys are
cut in parts as well, whose results a second step joins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from partita.lowering import Array
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.scalar.instructions import like
from partita_cpu.scalar.math import exp_below_zero, tanh

ROWS = 16
"""Queries, of all heads of a group, that share the reading of a block of keys."""

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
    SINK,
    SINKS,
) = range(16)
"""What the table of a step holds. GROUP: heads that share a head of keys and values; SIZE:
of a key; OUTPUTS: size of a value; PLACES: of the cache; PARTS: in which keys are cut; WINDOW: most
keys that a query sees, -1 for all; BIASED: whether there is a bias, then its strides; SINK: whether
a number of its own is in each softmax; SINKS: whether heads have theirs.
"""

TABLE_FIELDS = SINKS + 1
"""Of the table; what a way of attending adds to it follows."""


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


@loop
def store_results(terms: Terms, results: Results, made: Array, table: Array, chosen: Block) -> None:
    """Brings what was made of a block to its place: the result's, or that of its part.

    Args:
        terms: Has what the softmax counts besides the keys.
        results: The result, or those of parts.
        made: Sums of values, behind `ROWS` of them largest scores, then sums of the softmax.
        table: Sizes.
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
        table: Sizes.
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
    """Joins what is left of parts of the keys."""
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
