"""Attention in one step: scores of some queries, their softmax and its product with the values.

Keys and values of a head are packed once per thread; the scores never leave the cache. Where
products of float32 are computed in bfloat16 by vectors, so are these two unless keys are few:
queries, keys, values and the softmax's results are rounded; sums and the softmax are in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder
from partita.lowering.shapes.symbolic_size import integer
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns
from partita_cpu.gemm.batched import PACKED_SHARE
from partita_cpu.gemm.packing.kernels import PARTS, PIECE, PLACES, PackingRoom, pack_units
from partita_cpu.gemm.packing.packing_table import BLOCKS
from partita_cpu.gemm.packing.packing_table import ROWS as PACKED_ROWS
from partita_cpu.gemm.precision_policy import PrecisionPolicy, native_policy
from partita_cpu.gemm.tile_kernels import FIRST, NARROW, SLOTS, tile_kernels
from partita_cpu.jit.intrinsics.address_array import floats_at, integers_at, shorts_at
from partita_cpu.jit.intrinsics.address_call import address, call_narrow, call_tile
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.levels import Level
from partita_cpu.nhwc.attention_table import (
    BATCHES,
    COLUMNS,
    COSINE,
    DEPTH,
    HEADS,
    K_BATCH,
    K_HEAD,
    K_START,
    KEY_TABLE,
    KEYS,
    OUTPUTS,
    PACKING_FLOATS,
    PAIRS,
    Q_BATCH,
    Q_HEAD,
    Q_START,
    Q_STEP,
    QUERIES,
    ROOM,
    ROWS,
    SHARING,
    TILE_FLOATS,
    V_BATCH,
    V_HEAD,
    V_START,
    VALUE_TABLE,
    Y_BATCH,
    Y_HEAD,
    Y_STEP,
    AttentionInputs,
    HeadSizes,
    HeadView,
    Scores,
    attention_table,
    packed_floats,
    staggered,
)
from partita_cpu.nhwc.attention_weights import (
    Factors,
    Queries,
    Weights,
    measure_keys,
    weigh_values,
)
from partita_cpu.scalar.instructions import wide_vectors
from partita_cpu.threads.thread_memory import thread_memory

PAIRED_KEYS = 32
"""Keys from which on products of pairs gain more than rounding takes (the performance log)."""


WEIGH = SLOTS
"""Where `head_kernels` has the kernel of `llvm.attention.weigh`."""


@loop
def attend_heads(
    inputs: AttentionInputs,
    y: Array,
    scratch: Array,
    offsets: Array,
    kernels: Array,
    p: Array,
    scale: float,
    least: float,
    tid: int,
    nt: int,
) -> None:
    """``y = softmax(scale * q @ k.T + mask) @ v`` for every batch and head.

    Args:
        inputs: Queries, keys, values, masks and factors of heads.
        y: The result, flat; float32, or bfloat16 as uint16.
        scratch: Floats; as many for each thread as the table says.
        offsets: One zero.
        kernels: `head_kernels`.
        p: The table.
        scale: Factor of the scores.
        least: What queries and keys are divided by if they are shorter.
        tid: This thread.
        nt: All threads; they share heads and queries.
    """
    heads, queries, keys = p[HEADS], p[QUERIES], p[KEYS]
    most, wide, pairs = p[ROWS], p[COLUMNS], p[PAIRS]
    threads = min(nt, scratch.size // p[ROOM])
    if tid >= threads:
        return
    across, beyond = -(-keys // wide), -(-p[OUTPUTS] // wide)
    key_steps, value_steps = _steps(p[DEPTH], pairs), _steps(keys, pairs)
    start = address(scratch) + 4 * tid * p[ROOM]
    start += -start % 64
    head_of = PackedHead(
        start + 4 * PACKING_FLOATS, start + 4 * (PACKING_FLOATS + across * key_steps * wide)
    )
    # Of a row its scores, or its results before they are rounded, and what products read.
    pitch = staggered(max(across, beyond) * wide)
    step = staggered(max(key_steps, value_steps)) if pairs else 0
    scores = head_of.values + 4 * beyond * value_steps * wide
    rounded = scores + 4 * most * pitch
    zeros = rounded + 4 * most * step
    weights = Weights(rounded, 4 * step) if pairs else Weights(scores, 4 * pitch)
    room = TileRoom(zeros + 4 * wide, zeros, wide)
    lengths = floats_at(room.tile + 4 * TILE_FLOATS, keys + most)
    floats_at(zeros, wide)[:] = 0
    tiles, packed = -(-queries // most), -1
    units = p[BATCHES] * heads * tiles
    for unit in range(units * tid // threads, units * (tid + 1) // threads):
        head = unit // tiles
        batch, number = head // heads, head % heads
        if head != packed:
            packed = head
            _pack_head(inputs, p, batch, number // p[SHARING], start, head_of)
            if p[COSINE]:
                measure_keys(inputs, p, batch, number // p[SHARING], least, lengths)
        t = unit - head * tiles
        first = queries * t // tiles
        rows = queries * (t + 1) // tiles - first
        query = p[Q_START] + batch * p[Q_BATCH] + number * p[Q_HEAD] + first * p[Q_STEP]
        a, a_step = address(inputs.q) + 4 * query, 4 * p[Q_STEP]
        if pairs:
            _round_rows(kernels[NARROW], a, a_step, rows, p[DEPTH], rounded, 4 * step)
            a, a_step = rounded, 4 * step
        found = RowsAt(scores, 4 * pitch, rows)
        columns = PackedColumns(head_of.keys, key_steps, keys)
        _multiply_rows(kernels, offsets, RowsAt(a, a_step, rows), columns, room, found, 4 * wide)
        which = Queries(batch, number, first, first + rows)
        products = Weights(scores, 4 * pitch)
        factors = Factors(scale, least)
        weigh_values(inputs, p, which, products, weights, lengths, factors, kernels[WEIGH])
        place = batch * p[Y_BATCH] + number * p[Y_HEAD] + first * p[Y_STEP]
        result = RowsAt(address(y) + y.itemsize * place, y.itemsize * p[Y_STEP], rows)
        to = result if y.itemsize == 4 else found
        a = RowsAt(weights.at, weights.step, rows)
        columns = PackedColumns(head_of.values, value_steps, p[OUTPUTS])
        _multiply_rows(kernels, offsets, a, columns, room, to, 4 * wide)
        _divide_rows(kernels[NARROW], to, result, p[OUTPUTS], y.itemsize, lengths[keys:])


class RowsAt(NamedTuple):
    """Address of rows, bytes from one to the next, and how many."""

    at: int
    step: int
    rows: int


class PackedColumns(NamedTuple):
    """Address of packed columns, elements of 4 bytes of each, and how many."""

    at: int
    steps: int
    columns: int


class TileRoom(NamedTuple):
    """Addresses of memory of a tile kernel, and of zeros for each of so many columns of it."""

    tile: int
    zeros: int
    wide: int


@loop
def _multiply_rows(
    kernels: Array,
    offsets: Array,
    a: RowsAt,
    b: PackedColumns,
    room: TileRoom,
    to: RowsAt,
    block_bytes: int,
) -> None:
    """Rows by columns, a block of columns after another.

    Args:
        kernels: Addresses of tile kernels, by rows.
        offsets: Where steps of a row are.
        a: Rows.
        b: Columns.
        room: Memory.
        to: The result.
        block_bytes: What a row takes of the results of a block.
    """
    low, high, wide = np.float32(-np.inf), np.float32(np.inf), room.wide
    for block in range(-(-b.columns // wide)):
        exist = min(wide, b.columns - block * wide)
        packed = b.at + 4 * block * b.steps * wide
        place = to.at + block * block_bytes
        finish = (room.tile, room.zeros, 0, place, to.step, exist, low, high, 0)
        call_tile(
            kernels[a.rows + (FIRST if 2 * exist <= wide else 0)],
            (a.at, a.step, address(offsets), 1, b.steps, packed, 0, a.rows, 0, packed, *finish),
        )


@loop
def _divide_rows(
    narrow: int, rows: RowsAt, to: RowsAt, count: int, size: int, shares: Array
) -> None:
    """Multiplies rows of floats by a share each, and rounds them to bfloat16 where that is asked.

    Args:
        narrow: Address of what rounds a row.
        rows: The rows, which are written over.
        to: Where they go if elements of results have two bytes; else that is where they are.
        count: Floats of a row.
        size: Bytes of an element of results.
        shares: One for each row.
    """
    wide_vectors()
    for r in range(rows.rows):
        place = rows.at + r * rows.step
        line, share = floats_at(place, count), shares[r]
        for j in range(count):
            line[j] *= share
        if size == 2:
            call_narrow(narrow, (place, count, to.at + r * to.step, 0, count))


class PackedHead(NamedTuple):
    """Addresses of keys and values of a head, packed."""

    keys: int
    values: int


@loop(inline=True)
def _steps(terms: int, pairs: int) -> Any:
    """Elements of 4 bytes that so many terms of a sum are packed as."""
    return (terms + 1) // 2 if pairs else terms


@loop
def _round_rows(
    kernel: int, source: int, step: int, rows: int, size: int, target: int, pitch: int
) -> None:
    """Makes bfloat16 of rows of floats, a zero behind an odd number of them.

    Args:
        kernel: Address of what rounds a row.
        source: Address of the first one.
        step: Bytes from one to the next.
        rows: How many.
        size: Floats of a row.
        target: Address of the first result, which may be that of the first row.
        pitch: Bytes from one result to the next.
    """
    for r in range(rows):
        call_narrow(kernel, (source + r * step, size, target + r * pitch, 0, (size + 1) // 2 * 2))


@loop
def _pack_head(
    inputs: AttentionInputs, p: Array, batch: int, head: int, room: int, to: PackedHead
) -> None:
    """Packs keys and values of one head.

    Args:
        inputs: Keys and values.
        p: The table.
        batch: The sequence.
        head: The head.
        room: Address of memory.
        to: Where they go.
    """
    places, floats = integers_at(room, PLACES), floats_at(room + 8 * PLACES, PIECE)
    parts = shorts_at(room + 8 * PLACES + 4 * PIECE, PARTS * PIECE)
    work = PackingRoom(places, floats, parts)
    for which in range(2):
        table = p[VALUE_TABLE:] if which else p[KEY_TABLE:VALUE_TABLE]
        source = address(inputs.k) + 4 * (p[K_START] + batch * p[K_BATCH] + head * p[K_HEAD])
        target = to.keys
        if which:
            source = address(inputs.v) + 4 * (p[V_START] + batch * p[V_BATCH] + head * p[V_HEAD])
            target = to.values
        size = table[BLOCKS] * table[PACKED_ROWS] * p[COLUMNS]
        whole, halves = floats_at(target, size), shorts_at(target, size)
        pack_units(source, whole, halves, work, table, 0, table[BLOCKS])


def emit_attention(b: Builder, parts: Sequence[HeadView], sizes: HeadSizes, scores: Scores) -> bool:
    """Records attention of float32 tensors in one step, or nothing.

    What is computed in bfloat16 may end in it.

    Products are computed in bfloat16 where those of float32 are, by vectors, from 32 keys on; AMX
    computes no attention.

    Args:
        b: The builder.
        parts: Queries, keys, values and the result.
        sizes: Of all of them.
        scores: What becomes of the products of queries and keys.

    Returns:
        Whether it was done.
    """
    policy = native_policy(b.options)
    given = [part.tensor for part in parts[:3]] + [mask.tensor for mask in scores.masks]
    result = parts[3].tensor
    if policy is None or b.folding or not result.size:
        return False
    if any(x.dtype != np.float32 or not x.size for x in given) or not fits_in_cache(policy, sizes):
        return False
    arithmetic = attention_arithmetic(policy, sizes)
    is_half = result.dtype == np.uint16
    if result.dtype != np.float32 and not (is_half and arithmetic.in_bfloat16):
        return False
    table = attention_table(policy.level, arithmetic, sizes, parts, scores)
    q, k, v, y = (b.flat(part.tensor) for part in parts)
    masks = [b.flat(mask.tensor) for mask in scores.masks]
    mask, other = [*masks, q, q][:2]
    b.call(
        attend_heads,
        AttentionInputs(
            q, k, v, mask, other, q if scores.factors is None else b.flat(scores.factors)
        ),
        y,
        thread_memory(b, policy.threads, integer(table[ROOM]), np.float32),
        b.constant(np.zeros(1, np.int64)),
        b.constant(head_kernels(policy.level, arithmetic)),
        b.constant(table),
        scores.scale,
        scores.least or 0.0,
        work=sizes.batches
        * sizes.heads
        * sizes.queries
        * sizes.keys
        * (sizes.depth + sizes.outputs),
        exec_type=arithmetic.exec_type(policy.level),
    )
    return True


@functools.cache
def head_kernels(level: Level, arithmetic: Arithmetic) -> Array:
    """`tile_kernels.tile_kernels`, then what makes weights of scores, at `WEIGH`."""
    name = "weigh_halves" if arithmetic.in_bfloat16 else "weigh"
    return np.append(tile_kernels(level, arithmetic), addresses(level, "_softmax")[name])


def attention_arithmetic(policy: PrecisionPolicy, sizes: HeadSizes) -> Arithmetic:
    """How products of attention are computed."""
    vectors = policy.arithmetic is Arithmetic.BF16 and not policy.level.tiles
    return Arithmetic.BF16 if vectors and sizes.keys >= PAIRED_KEYS else Arithmetic.F32


def fits_in_cache(policy: PrecisionPolicy, sizes: HeadSizes) -> bool:
    """Whether keys and values of a head are few enough to be packed for one step."""
    floats = packed_floats(sizes, tile_columns(policy.level))
    return 4 * floats <= policy.machine.l2_bytes(PACKED_SHARE)
