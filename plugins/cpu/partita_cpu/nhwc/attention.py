"""Attention in one step: scores of some queries, their softmax and its product with the values.

Keys and values of a head are packed once per thread; the scores never leave the cache. Where
products of float32 are computed in bfloat16 by vectors, so are these two unless keys are few:
queries, keys, values and what the softmax makes of the scores are rounded, sums and the softmax are
in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.shapes.symbolic_size import integers, whole
from partita_cpu.gemm.batched import PACKED_SHARE
from partita_cpu.gemm.packing import (
    BLOCKS,
    FIELDS,
    PARTS,
    PIECE,
    PLACES,
    PackingRoom,
    matrix_table,
    pack_units,
)
from partita_cpu.gemm.packing import ROWS as PACKED_ROWS
from partita_cpu.gemm.precision_policy import native_choice
from partita_cpu.gemm.tile_kernels import (
    FIRST,
    NARROW,
    Arithmetic,
    tile_columns,
    tile_kernels,
    tile_rows,
)
from partita_cpu.jit.intrinsics.address_array import floats_at, integers_at, shorts_at
from partita_cpu.jit.intrinsics.address_call import address, call_narrow, call_tile
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.llvm.levels import Level
from partita_cpu.scalar.math import (
    add_in_any_order,
    exp_below_zero,
    like,
    row_maximum,
    wide_vectors,
)

_TILE = 1024
"""Floats that a tile kernel may put aside."""

_LINE = 32
"""Floats that aligning scratch memory may cost."""

_PACKING = 2 * PLACES + PIECE + PARTS * PIECE // 2
"""Floats of the memory of what packs."""

PAIRED_KEYS = 32
"""Keys from which on products of pairs gain more than rounding takes (the performance log)."""

(
    BATCHES,
    HEADS,
    SHARING,
    QUERIES,
    KEYS,
    DEPTH,
    OUTPUTS,
    Q_BATCH,
    Q_STEP,
    Q_HEAD,
    K_BATCH,
    K_STEP,
    K_HEAD,
    V_BATCH,
    V_STEP,
    V_HEAD,
    Y_BATCH,
    Y_STEP,
    Y_HEAD,
    MASK_BATCH,
    MASK_HEAD,
    MASK_QUERY,
    MASK_KEY,
    MASKED,
    BECOMES_ZERO,
    ROOM,
    ROWS,
    COLUMNS,
    PAIRS,
    KEY_TABLE,
) = range(30)
"""What the table of `attend_heads` holds. SHARING: heads that share a head of keys and values;
DEPTH: size of a key; OUTPUTS: size of a value; then elements between neighbours: batches, places of
the sequence, heads; MASKED: whether there is a mask; BECOMES_ZERO:
`emit_attention`'s argument; ROOM: scratch floats of a thread; ROWS and
COLUMNS: of a tile; PAIRS: whether products are of pairs of bfloat16; from KEY_TABLE on
`packing.matrix_table` of the keys of a head, turned, and from VALUE_TABLE on that of its values.
"""

VALUE_TABLE = KEY_TABLE + FIELDS


class AttentionInputs(NamedTuple):
    """Queries, keys, values and mask, flat; the mask is not read unless the table says so."""

    q: KernelArray
    k: KernelArray
    v: KernelArray
    mask: KernelArray


@loop
def attend_heads(
    inputs: AttentionInputs,
    y: Array,
    scratch: Array,
    offsets: Array,
    kernels: Array,
    p: Array,
    scale: float,
    tid: int,
    nt: int,
) -> None:
    """``y = softmax(scale * q @ k.T + mask) @ v`` for every batch and head.

    Args:
        inputs: Queries, keys, values and mask.
        y: The result, flat.
        scratch: Floats; as many for each thread as the table says.
        offsets: One zero.
        kernels: `tile_kernels.tile_kernels`.
        p: The table.
        scale: Factor of the scores.
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
    head_of = PackedHead(start + 4 * _PACKING, start + 4 * (_PACKING + across * key_steps * wide))
    pitch = across * wide
    scores = head_of.values + 4 * beyond * value_steps * wide
    rounded = scores + 4 * most * pitch
    zeros = rounded + 4 * most * key_steps
    tile = zeros + 4 * wide
    floats_at(zeros, wide)[:] = 0
    low, high, factor = np.float32(-np.inf), np.float32(np.inf), np.float32(scale)
    tiles, packed = -(-queries // most), -1
    units = p[BATCHES] * heads * tiles
    for unit in range(units * tid // threads, units * (tid + 1) // threads):
        head = unit // tiles
        batch, number = head // heads, head % heads
        if head != packed:
            packed = head
            _pack_head(inputs, p, batch, number // p[SHARING], start, head_of)
        t = unit - head * tiles
        first = queries * t // tiles
        rows = queries * (t + 1) // tiles - first
        a = address(inputs.q) + 4 * (batch * p[Q_BATCH] + number * p[Q_HEAD] + first * p[Q_STEP])
        a_step = 4 * p[Q_STEP]
        if pairs:
            _round_rows(kernels[NARROW], a, a_step, rows, p[DEPTH], rounded, 4 * key_steps)
            a, a_step = rounded, 4 * key_steps
        for block in range(across):
            b = head_of.keys + 4 * block * key_steps * wide
            exist = min(wide, keys - block * wide)
            finish = (tile, zeros, 0, scores + 4 * block * wide, 4 * pitch, exist, low, high, 0)
            call_tile(
                kernels[rows + (FIRST if 2 * exist <= wide else 0)],
                (a, a_step, address(offsets), 1, key_steps, b, 0, rows, 0, b, *finish),
            )
        for r in range(rows):
            at = batch * p[MASK_BATCH] + number * p[MASK_HEAD] + (first + r) * p[MASK_QUERY]
            _softmax_row(floats_at(scores + 4 * r * pitch, keys), inputs.mask, at, factor, p)
        if pairs:
            _round_rows(kernels[NARROW], scores, 4 * pitch, rows, keys, scores, 4 * pitch)
        for block in range(beyond):
            b = head_of.values + 4 * block * value_steps * wide
            place = batch * p[Y_BATCH] + number * p[Y_HEAD] + first * p[Y_STEP]
            exist = min(wide, p[OUTPUTS] - block * wide)
            to = address(y) + 4 * (place + block * wide)
            finish = (tile, zeros, 0, to, 4 * p[Y_STEP], exist, low, high, 0)
            call_tile(
                kernels[rows + (FIRST if 2 * exist <= wide else 0)],
                (scores, 4 * pitch, address(offsets), 1, value_steps, b, 0, rows, 0, b, *finish),
            )


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
    """Packs keys and values of one head."""
    places, floats = integers_at(room, PLACES), floats_at(room + 8 * PLACES, PIECE)
    parts = shorts_at(room + 8 * PLACES + 4 * PIECE, PARTS * PIECE)
    work = PackingRoom(places, floats, parts)
    for which in range(2):
        table = p[VALUE_TABLE:] if which else p[KEY_TABLE:VALUE_TABLE]
        source = address(inputs.k) + 4 * (batch * p[K_BATCH] + head * p[K_HEAD])
        target = to.keys
        if which:
            source = address(inputs.v) + 4 * (batch * p[V_BATCH] + head * p[V_HEAD])
            target = to.values
        size = table[BLOCKS] * table[PACKED_ROWS] * p[COLUMNS]
        whole, halves = floats_at(target, size), shorts_at(target, size)
        pack_units(source, whole, halves, work, table, 0, table[BLOCKS])


@loop
def _softmax_row(line: Array, mask: Array, at: int, factor: Any, p: Array) -> None:
    """The softmax of the scores of a query times a factor, and what the mask has from `at` on."""
    wide_vectors()
    if p[MASKED] == 0:
        for j in range(line.size):
            line[j] *= factor
    elif p[MASK_KEY]:
        terms = mask[at : at + line.size]
        for j in range(line.size):
            line[j] = line[j] * factor + terms[j]
    else:
        term = mask[at]
        for j in range(line.size):
            line[j] = line[j] * factor + term
    top = row_maximum(line)
    if p[BECOMES_ZERO] and top == np.float32(-np.inf):
        line[:] = 0
        return
    total = like(top, 0)
    for j in range(line.size):
        value = exp_below_zero(line[j] - top)
        line[j] = value
        total = add_in_any_order(total, value)
    if p[BECOMES_ZERO] == 2 and total != total:
        line[:] = 0
        return
    share = like(top, 1) / total
    for j in range(line.size):
        line[j] *= share


def emit_attention(
    b: Builder,
    tensors: Sequence[Operand],
    strides: Sequence[Sequence[int]],
    sizes: Sequence[int],
    mask: Operand | None,
    scale: float,
    becomes_zero: int,
) -> bool:
    """Records attention of float32 tensors in one step, or nothing.

    Products are computed in bfloat16 where those of float32 are, by vectors, from 32 keys on; AMX
    computes no attention.

    Args:
        b: The builder.
        tensors: Queries, keys, values and the result.
        strides: Of each of them, in elements: batch, sequence, head.
        sizes: Batches, heads, heads that share keys, queries, keys, size of a key, of a value.
        mask: Added to the scores; broadcasts with (batches, heads, queries, keys).
        scale: Factor of the scores.
        becomes_zero: Which queries are 0 and not NaN: none (0), those that the mask keeps from
            every key (1), or all whose weights are NaN (2).

    Returns:
        Whether it was done.
    """
    choice = native_choice(b.options)
    read = tensors if mask is None else [*tensors, mask]
    if choice is None or b.folding or any(x.dtype != np.float32 or not x.size for x in read):
        return False
    arithmetic = Arithmetic.F32
    vectors = choice.arithmetic is Arithmetic.BF16 and not choice.level.tiles
    if vectors and sizes[4] >= PAIRED_KEYS:
        arithmetic = Arithmetic.BF16
    table = attention_table(
        choice.level,
        arithmetic,
        sizes,
        strides,
        None if mask is None else mask.shape,
        becomes_zero,
    )
    if packed_floats(table) * 4 > choice.machine.l2_bytes(PACKED_SHARE):
        return False
    q, k, v, y = (b.flat(x) for x in tensors)
    b.call(
        attend_heads,
        AttentionInputs(q, k, v, q if mask is None else b.flat(mask)),
        y,
        b.empty((choice.threads * whole(table[ROOM]),), np.float32),
        b.constant(np.zeros(1, np.int64)),
        b.constant(tile_kernels(choice.level, arithmetic)),
        b.constant(table),
        scale,
        work=math.prod(sizes[:2]) * math.prod(sizes[3:5]) * sum(sizes[5:]),
        exec_type=arithmetic.exec_type(choice.level),
    )
    return True


def attention_table(
    level: Level,
    arithmetic: Arithmetic,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    mask: Sequence[int] | None,
    becomes_zero: int,
) -> Array:
    """The table of `attend_heads`; `mask` is a shape, the rest as `emit_attention` takes it."""
    places = [step for each in strides for step in each]
    steps = (0, 0, 0, 0) if mask is None else mask_strides(mask)
    flags = int(mask is not None), becomes_zero
    rows, columns = tile_rows(level, arithmetic), tile_columns(level)
    keys, depth, outputs = sizes[4:]
    of_keys = matrix_table(level, arithmetic, (depth, keys), (1, strides[1][1]))
    of_values = matrix_table(level, arithmetic, (keys, outputs), (strides[2][1], 1))
    tile = rows, columns, int(arithmetic.in_bfloat16)
    table = integers([*sizes, *places, *steps, *flags, 0, *tile, *of_keys, *of_values])
    line = -(-keys // columns) * columns
    floats = packed_floats(table) + rows * (line + depth + 1) + columns
    table[ROOM] = floats + _PACKING + _TILE + _LINE
    return table


def packed_floats(table: Array) -> int:
    """Memory for the packed keys and values of one head, as floats; half as much holds pairs."""
    keys, depth, outputs, wide = (whole(table[i]) for i in (KEYS, DEPTH, OUTPUTS, COLUMNS))
    floats: int = (-(-keys // wide) * (depth + 1) + -(-outputs // wide) * (keys + 1)) * wide
    return floats


def mask_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours along each of four axes; 0 where the mask is broadcast."""
    strides, step = [], 1
    for size in reversed((1,) * (4 - len(shape)) + tuple(shape)):
        strides.append(step if size != 1 else 0)
        step *= size
    return tuple(reversed(strides))
