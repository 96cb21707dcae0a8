"""New queries, keys and values: normalized, rotated, and appended to the cache."""

from __future__ import annotations

from typing import Any, NamedTuple

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
from partita_cpu.kernels.attention.new_heads import POSITIONED, NewHeads, head_place, rotate_head
from partita_cpu.scalar.instructions import like, maximum, wide_vectors
from partita_cpu.scalar.math import copy_row

BATCHES, HEADS, KV_HEADS, QUERIES, SIZE, PAST_PLACES, PLACES, V_PITCH, V_START = range(9)
"""What the table of `append_tokens` holds. HEADS: of queries, 0 if attention rotates them itself;
SIZE: of a head; PAST_PLACES and PLACES: tokens that past and present have room for; V_PITCH:
elements from the values of one token to the next, V_START: element of the first head.
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


class RotatedQueries(NamedTuple):
    """Where queries go, (B, KV_HEADS, S, heads of a group, SIZE), flat; memory to compute in.

    That is `scratch_floats` for each thread.
    """

    queries: KernelArray
    scratch: KernelArray


@loop
def append_tokens(
    caches: Caches,
    queries: NewHeads,
    keys: NewHeads,
    values: Array,
    spans: Array,
    rotated: RotatedQueries,
    table: Array,
    tid: int,
    nt: int,
) -> None:
    """Rotates queries and keys by their positions; keys and values go into the cache.

    Args:
        caches: Before and after; what is new is written behind what is there.
        queries: Those of new tokens.
        keys: Those of new tokens.
        values: What holds those of new tokens, flat.
        spans: See `cache_spans`.
        rotated: Receives the queries, if the table has any.
        table: As above.
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
                _rotate_queries(queries, spans, rotated, (begin, end), table, batch, head)
                continue
            before = spans[2 * batch]
            some = begin, min(end, count, spans[2 * batch + 1] - before)
            head -= heads
            _append_head(caches, keys, values, before, some, mine, table, batch, head)


@loop
def _rotate_queries(
    given: NewHeads,
    spans: Array,
    rotated: RotatedQueries,
    some: Any,
    table: Array,
    batch: int,
    head: int,
) -> None:
    """Brings some queries of a head to where attention reads them.

    Args:
        given: Queries as they are given, and what rotates them.
        spans: For each sequence, tokens before the new ones, and all of them.
        rotated: Where they go.
        some: The first token, and the one behind the last.
        table: Sizes.
        batch: The sequence.
        head: The head of queries.
    """
    queries, count, size, kv_heads = rotated.queries, table[QUERIES], table[SIZE], table[KV_HEADS]
    members = table[HEADS] // kv_heads
    group, member = head // members, head % members
    before = spans[2 * batch]
    new = min(count, spans[2 * batch + 1] - before)
    first = (batch * kv_heads + group) * count * members + member
    for s in range(some[0], some[1]):
        place = (first + s * members) * size
        target = queries[place : place + size]
        if s >= new:
            target[:] = 0
            continue
        position = batch * count + s if given.table[POSITIONED] else before + s
        rotate_head(given, head_place(given.table, batch, group, member, s), position, target)


@loop
def _append_head(
    caches: Caches,
    given: NewHeads,
    new_values: Array,
    before: int,
    some: Any,
    mine: Array,
    table: Array,
    batch: int,
    head: int,
) -> None:
    """Brings one head of keys and values to the present, and some of the new ones behind.

    Args:
        caches: Past and present keys and values.
        given: New keys as they are given, and what rotates them.
        new_values: New values.
        before: Tokens before the new ones.
        some: The first new token, and the one behind the last.
        mine: Memory of this thread.
        table: Sizes.
        batch: The sequence.
        head: The head of keys.
    """
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
        row = batch * count + s
        position = row if given.table[POSITIONED] else before + s
        rotate_head(given, head_place(given.table, batch, head, 0, s), position, mine)
        _put_row(mine, keys[place : place + step])
        start = row * table[V_PITCH] + table[V_START] + head * size
        _put_row(new_values[start : start + size], values[place : place + step])


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


@register_jitable
def scratch_floats(size: Any) -> Any:
    """Floats that a thread of `append_tokens` needs, of whole lines of the cache."""
    return -(-size // 16) * 16


append_kernel = CacheKernel(append_tokens, 4)
"""`append_tokens` for caches of any type."""
