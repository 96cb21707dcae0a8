"""New queries, keys and values: normalized, rotated, and appended to the cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
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
from partita_cpu.scalar.math import add_in_any_order, copy_row, like, maximum

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


@loop
def append_tokens(
    caches: Caches,
    tokens: Tokens,
    rotary: Rotary,
    norms: Norms,
    spans: Array,
    queries: Array,
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
        queries: Receives the queries, times the scale, (B, KV_HEADS, S, heads of a group, SIZE).
        table: As above.
        scale: Factor of the queries.
        tid: This thread.
        nt: All threads; they share the heads.
    """
    heads, kv_heads, size = table[HEADS], table[KV_HEADS], table[SIZE]
    group, count = heads // kv_heads, table[QUERIES]
    each = heads + kv_heads
    for unit in range(table[BATCHES] * each * tid // nt, table[BATCHES] * each * (tid + 1) // nt):
        batch, head = unit // each, unit % each
        before = spans[2 * batch]
        new = min(count, spans[2 * batch + 1] - before)
        if head >= heads:
            _append_head(caches, tokens, rotary, norms, before, new, table, batch, head - heads)
            continue
        first = (batch * kv_heads + head // group) * count * group + head % group
        for s in range(count):
            start = (batch * count + s) * table[Q_PITCH] + table[Q_START] + head * size
            source = tokens.q[start : start + size]
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
    new: int,
    table: Array,
    batch: int,
    head: int,
) -> None:
    """Brings one head of keys and values to the present, and the new ones behind."""
    size, count = table[SIZE], table[QUERIES]
    unit = batch * table[KV_HEADS] + head
    step = pitch(caches.keys, size)
    start, length = unit * table[PLACES] * step, table[PLACES] * step
    keys, values = caches.keys[start : start + length], caches.values[start : start + length]
    start, length = unit * table[PAST_PLACES] * step, table[PAST_PLACES] * step
    keep_past(caches.past_keys, start, length, caches.keys, keys)
    keep_past(caches.past_values, start, length, caches.values, values)
    for s in range(new):
        place = (before + s) * step
        row, target = batch * count + s, keys[place : place + step]
        start = row * table[K_PITCH] + table[K_START] + head * size
        _append_key(tokens.k[start : start + size], rotary, norms, before + s, row, table, target)
        start = row * table[V_PITCH] + table[V_START] + head * size
        source, target = tokens.v[start : start + size], values[place : place + step]
        inverse = like(source[0], 1)
        if has_scales(target):
            largest = like(source[0], 0)
            for i in range(size):
                largest = maximum(largest, abs(source[i]))
            inverse = put_scale(target, size, largest)
        for i in range(size):
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


@loop
def _append_key(
    source: Array,
    rotary: Rotary,
    norms: Norms,
    at: int,
    row: int,
    table: Array,
    target: Array,
) -> None:
    """One key, normalized and rotated in float32, as the cache has it."""
    half, size = table[ROTATED] // 2, source.size
    place = (rotary.positions[row] if table[POSITIONED] else at) * half
    factor = like(source[0], 1)
    if table[NORMALIZED]:
        factor = _inverse_root(source, norms.k_epsilon)
    inverse = like(factor, 1)
    if has_scales(target):
        largest = like(factor, 0)
        for i in range(half):
            a, b = _rotated_pair(source, rotary, norms, factor, place, i, table)
            largest = maximum(largest, maximum(abs(a), abs(b)))
        for i in range(2 * half, size):
            largest = maximum(largest, abs(_scaled(source, norms, factor, i, table)))
        inverse = put_scale(target, size, largest)
    for i in range(half):
        first = 2 * i if table[INTERLEAVED] else i
        second = first + 1 if table[INTERLEAVED] else first + half
        a, b = _rotated_pair(source, rotary, norms, factor, place, i, table)
        target[first] = rounded_as(target, a * inverse)
        target[second] = rounded_as(target, b * inverse)
    for i in range(2 * half, size):
        x = _scaled(source, norms, factor, i, table)
        target[i] = rounded_as(target, x * inverse)


@loop(inline=True)
def _rotated_pair(
    source: Any, rotary: Any, norms: Any, factor: Any, place: Any, i: Any, table: Any
) -> Any:
    """A pair of elements of a key, normalized and rotated by the angle at a place of the tables."""
    half = table[ROTATED] // 2
    first = 2 * i if table[INTERLEAVED] else i
    second = first + 1 if table[INTERLEAVED] else first + half
    a = _scaled(source, norms, factor, first, table)
    b = _scaled(source, norms, factor, second, table)
    cosine, sine = rotary.cosines[place + i], rotary.sines[place + i]
    return a * cosine - b * sine, b * cosine + a * sine


@loop(inline=True)
def _scaled(source: Any, norms: Any, factor: Any, i: Any, table: Any) -> Any:
    """An element of a key, normalized."""
    if table[NORMALIZED]:
        return source[i] * factor * norms.k[i]
    return source[i] * factor


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
    start = at * half
    if interleaved:
        for i in range(half):
            a, b = row[2 * i], row[2 * i + 1]
            cosine, sine = cosines[start + i], sines[start + i]
            row[2 * i] = a * cosine - b * sine
            row[2 * i + 1] = b * cosine + a * sine
    else:
        for i in range(half):
            a, b = row[i], row[i + half]
            cosine, sine = cosines[start + i], sines[start + i]
            row[i] = a * cosine - b * sine
            row[i + half] = b * cosine + a * sine


append_kernel = CacheKernel(append_tokens, 4)
"""`append_tokens` for caches of any type."""
