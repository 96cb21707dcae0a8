"""New queries, keys and values: normalized, rotated, and appended to the cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.intrinsics.address_call import address
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.attention.cache_elements import (
    CacheKernel,
    has_scales,
    pitch,
    put_scale,
    rounded_as,
)
from partita_cpu.scalar.math import add_in_any_order, copy_row, like, maximum, wide_vectors

(
    BATCHES,
    HEADS,
    KV_HEADS,
    QUERIES,
    SIZE,
    PAST_PLACES,
    PLACES,
    Q_PITCH,
    Q_START,
    K_PITCH,
    K_START,
    V_PITCH,
    V_START,
    ROTATED,
    INTERLEAVED,
    POSITIONED,
    NORMALIZED,
) = range(17)
"""What the table of `append_tokens` holds. SIZE: of a head; PAST_PLACES and PLACES: tokens that
past and present have room for; PITCH: elements from one token to the next, START: element of the
first head; ROTATED: elements of a head that turn, in pairs; INTERLEAVED: whether pairs are
neighbours; POSITIONED: whether positions are given; NORMALIZED: whether there are weights of norms.
"""


MANY_TOKENS = 8
"""Of so many for each thread, threads share the tokens where caches grow in place: as much of each
head for all, whatever keys and values cost beside queries."""

TOGETHER = 16
"""Of these, tokens whose heads come one after another: heads of a token are neighbours, and what
one head has of all tokens lies in pieces that no processor foresees, in more pages than it knows.
"""


class Caches(NamedTuple):
    """Keys and values before this run and after it, (B, KV_HEADS, places, SIZE), flat.

    Both are the same memory where the cache grows in place.
    """

    past_keys: KernelArray
    past_values: KernelArray
    keys: KernelArray
    values: KernelArray


class Tokens(NamedTuple):
    """Queries, keys and values of new tokens, flat; all three the same where they are packed."""

    q: KernelArray
    k: KernelArray
    v: KernelArray


class Rotary(NamedTuple):
    """Tables of cosines and sines, (positions, ROTATED / 2), flat; positions of the tokens."""

    cosines: KernelArray
    sines: KernelArray
    positions: KernelArray


class Norms(NamedTuple):
    """Weights of the norms of queries and keys, what is added under the roots."""

    q: KernelArray
    k: KernelArray
    q_epsilon: float
    k_epsilon: float


class RotatedQueries(NamedTuple):
    """Where queries go, (B, KV_HEADS, S, heads of a group, SIZE), flat; memory to compute in.

    That is `scratch_floats` for each thread.
    """

    queries: KernelArray
    scratch: KernelArray


@loop
def append_tokens(
    caches: Caches,
    tokens: Tokens,
    rotary: Rotary,
    norms: Norms,
    spans: Array,
    rotated: RotatedQueries,
    table: Array,
    scale: float,
    tid: int,
    nt: int,
) -> None:
    """Turns queries and keys by their positions; keys and values go into the cache.

    Args:
        caches: Before and after; what is new is written behind what is there.
        tokens: What is new.
        rotary: How it turns; not read if nothing does.
        norms: Not read unless the table says so.
        spans: See `cache_spans`.
        rotated: Receives the queries, times the scale.
        table: As above.
        scale: Factor of the queries.
        tid: This thread.
        nt: All threads; they share the heads, or the tokens if these are many.
    """
    wide_vectors()
    scratch = rotated.scratch
    heads, kv_heads, size = table[HEADS], table[KV_HEADS], table[SIZE]
    count = table[QUERIES]
    each, room = heads + kv_heads, scratch_floats(size)
    threads = min(nt, scratch.size // room)
    if tid >= threads:
        return
    mine = scratch[tid * room : tid * room + size]
    low, high = table[BATCHES] * each * tid // threads, table[BATCHES] * each * (tid + 1) // threads
    start, stop, together = 0, count, max(count, 1)
    in_place = address(caches.past_keys) == address(caches.keys)
    in_place = in_place and address(caches.past_values) == address(caches.values)
    if in_place and count >= MANY_TOKENS * threads:
        low, high = 0, table[BATCHES] * each
        start, stop = count * tid // threads, count * (tid + 1) // threads
        together = TOGETHER
    for begin in range(start, max(stop, 1), together):  # without tokens for the past alone
        end = min(begin + together, stop)
        for unit in range(low, high):
            batch, head = unit // each, unit % each
            if head < heads:
                some = begin, end
                _turn_queries(tokens, rotary, norms, spans, rotated, some, table, scale, unit)
                continue
            before = spans[2 * batch]
            some = begin, min(end, count, spans[2 * batch + 1] - before)
            head -= heads
            _append_head(caches, tokens, rotary, norms, before, some, mine, table, batch, head)


@loop
def _turn_queries(
    tokens: Tokens,
    rotary: Rotary,
    norms: Norms,
    spans: Array,
    rotated: RotatedQueries,
    some: Any,
    table: Array,
    scale: float,
    unit: int,
) -> None:
    """Brings some queries of a head to where attention reads them."""
    queries, count, size = rotated.queries, table[QUERIES], table[SIZE]
    heads, kv_heads = table[HEADS], table[KV_HEADS]
    group, each = heads // kv_heads, heads + kv_heads
    batch, head = unit // each, unit % each
    before = spans[2 * batch]
    new = min(count, spans[2 * batch + 1] - before)
    first = (batch * kv_heads + head // group) * count * group + head % group
    for s in range(some[0], some[1]):
        at = (batch * count + s) * table[Q_PITCH] + table[Q_START] + head * size
        source = tokens.q[at : at + size]
        place = (first + s * group) * size
        target = queries[place : place + size]
        if s >= new:
            target[:] = 0
            continue
        factor = like(target[0], scale)
        if table[NORMALIZED]:
            factor *= _inverse_root(source, norms.q_epsilon)
        scale_row(source, norms.q, factor, table[NORMALIZED], target)
        at = rotary.positions[batch * count + s] if table[POSITIONED] else before + s
        rotate_row(target, rotary.cosines, rotary.sines, at, table[ROTATED], table[INTERLEAVED])


@loop
def _append_head(
    caches: Caches,
    tokens: Tokens,
    rotary: Rotary,
    norms: Norms,
    before: int,
    some: Any,
    mine: Array,
    table: Array,
    batch: int,
    head: int,
) -> None:
    """Brings one head of keys and values to the present, and some of the new ones behind."""
    size, count = table[SIZE], table[QUERIES]
    unit = batch * table[KV_HEADS] + head
    step = pitch(caches.keys, size)
    start, length = unit * table[PLACES] * step, table[PLACES] * step
    keys, values = caches.keys[start : start + length], caches.values[start : start + length]
    start, length = unit * table[PAST_PLACES] * step, table[PAST_PLACES] * step
    keep_past(caches.past_keys, start, length, caches.keys, keys)
    keep_past(caches.past_values, start, length, caches.values, values)
    for s in range(some[0], some[1]):
        place = (before + s) * step
        row, target = batch * count + s, keys[place : place + step]
        start = row * table[K_PITCH] + table[K_START] + head * size
        source, factor = tokens.k[start : start + size], like(mine[0], 1)
        if table[NORMALIZED]:
            factor = _inverse_root(source, norms.k_epsilon)
        scale_row(source, norms.k, factor, table[NORMALIZED], mine)
        at = rotary.positions[row] if table[POSITIONED] else before + s
        rotate_row(mine, rotary.cosines, rotary.sines, at, table[ROTATED], table[INTERLEAVED])
        _put_row(mine, target)
        start = row * table[V_PITCH] + table[V_START] + head * size
        _put_row(tokens.v[start : start + size], values[place : place + step])


@loop
def _put_row(source: Array, target: Array) -> None:
    """A row of floats as the cache has it."""
    inverse = like(source[0], 1)
    if has_scales(target):
        largest = like(source[0], 0)
        for i in range(source.size):
            largest = maximum(largest, abs(source[i]))
        inverse = put_scale(target, source.size, largest)
    for i in range(source.size):
        target[i] = rounded_as(target, source[i] * inverse)


@loop
def keep_past(past: Array, start: int, length: int, present: Array, part: Array) -> None:
    """Copies a part of the past to the beginning of its place in the present, the rest is 0.

    Nothing is done where both are the same memory.
    """
    if address(past) == address(present):
        return
    copy_row(past[start : start + length], part[:length])
    part[length:] = 0


@loop(inline=True)
def _inverse_root(row: Any, epsilon: Any) -> Any:
    """1 / the root of the mean square."""
    square = like(row[0], 0)
    for i in range(row.size):
        square = add_in_any_order(square, row[i] * row[i])
    return like(square, 1 / np.sqrt(np.float64(square) / row.size + epsilon))


@loop(inline=True)
def scale_row(source: Any, weights: Any, factor: Any, weighted: Any, target: Any) -> None:
    """A row times a factor, and element by element times weights where there are some."""
    if weighted:
        for i in range(target.size):
            target[i] = source[i] * factor * weights[i]
    else:
        for i in range(target.size):
            target[i] = source[i] * factor


@loop(inline=True)
def rotate_row(row: Any, cosines: Any, sines: Any, at: Any, rotated: Any, interleaved: Any) -> None:
    """Turns the pairs among the first elements of a row by the angles of a position."""
    half = rotated // 2
    # Slices, since an index that might be negative is looked at one by one.
    near, far = cosines[at * half : (at + 1) * half], sines[at * half : (at + 1) * half]
    if interleaved:
        for i in range(half):
            a, b = row[2 * i], row[2 * i + 1]
            row[2 * i] = a * near[i] - b * far[i]
            row[2 * i + 1] = b * near[i] + a * far[i]
    else:
        first, second = row[:half], row[half : 2 * half]
        for i in range(half):
            a, b = first[i], second[i]
            first[i] = a * near[i] - b * far[i]
            second[i] = b * near[i] + a * far[i]


@register_jitable
def scratch_floats(size: Any) -> Any:
    """Floats that a thread of `append_tokens` needs, of whole lines of the cache."""
    return -(-size // 16) * 16


append_kernel = CacheKernel(append_tokens, 4)
"""`append_tokens` for caches of any type."""
