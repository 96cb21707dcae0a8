"""Attention in one step: scores of some queries, their softmax and its product with the values.

Keys and values of a head are packed once per thread; the scores never leave the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.shapes.symbolic_size import integers, whole
from partita_cpu.gemm.batched import PACKED_SHARE
from partita_cpu.gemm.precision_policy import native_choice
from partita_cpu.gemm.tile_kernels import Arithmetic, tile_columns, tile_kernels, tile_rows
from partita_cpu.jit.intrinsics.address_call import address, call_tile
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.llvm.levels import Level
from partita_cpu.scalar.math import (
    add_in_any_order,
    copy_row,
    exp_below_zero,
    like,
    row_maximum,
    wide_vectors,
)

_TILE = 1024
"""Floats that a tile kernel may put aside."""

_LINE = 32
"""Floats that aligning scratch memory may cost."""

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
    CLOSED_IS_ZERO,
    ROOM,
    ROWS,
    COLUMNS,
) = range(28)
"""What the table of `attend_heads` holds. SHARING: heads that share a head of keys and values;
DEPTH: size of a key; OUTPUTS: size of a value; then elements between neighbours: batches, places of
the sequence, heads; MASKED: whether there is a mask; ROOM: scratch floats of a thread; ROWS and
COLUMNS: of a tile.
"""


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
        kernels: `table.tile_kernels` for float32.
        p: The table.
        scale: Factor of the scores.
        tid: This thread.
        nt: All threads; they share heads and queries.
    """
    wide_vectors()
    heads, queries, keys = p[HEADS], p[QUERIES], p[KEYS]
    depth, outputs, most, wide = p[DEPTH], p[OUTPUTS], p[ROWS], p[COLUMNS]
    threads = min(nt, scratch.size // p[ROOM])
    if tid >= threads:
        return
    across, beyond = -(-keys // wide), -(-outputs // wide)
    start = tid * p[ROOM]
    start += -(address(scratch) // 4 + start) % 16
    packed_keys = scratch[start : start + across * depth * wide]
    start += packed_keys.size
    packed_values = scratch[start : start + beyond * keys * wide]
    start += packed_values.size
    pitch = across * wide
    scores = scratch[start : start + most * pitch]
    start += scores.size
    zeros = scratch[start : start + wide]
    zeros[:] = 0
    tile = address(scratch) + 4 * (start + wide)
    factor = like(inputs.q[0], scale)
    low, high = np.float32(-np.inf), np.float32(np.inf)
    tiles = -(-queries // most)
    units = p[BATCHES] * heads * tiles
    packed = -1
    for unit in range(units * tid // threads, units * (tid + 1) // threads):
        head = unit // tiles
        batch, number = head // heads, head % heads
        if head != packed:
            packed = head
            shared = number // p[SHARING]
            _pack_head(inputs, p, batch, shared, factor, packed_keys, packed_values)
        t = unit - head * tiles
        first = queries * t // tiles
        rows = queries * (t + 1) // tiles - first
        a = address(inputs.q) + 4 * (batch * p[Q_BATCH] + number * p[Q_HEAD] + first * p[Q_STEP])
        for block in range(across):
            b = address(packed_keys) + 4 * block * depth * wide
            to = address(scores) + 4 * block * wide
            finish = (tile, address(zeros), 0, to, 4 * pitch, wide, low, high, 0)
            call_tile(
                kernels[rows],
                (a, 4 * p[Q_STEP], address(offsets), 1, depth, b, 0, rows, 0, b, *finish),
            )
        for r in range(rows):
            at = batch * p[MASK_BATCH] + number * p[MASK_HEAD] + (first + r) * p[MASK_QUERY]
            _softmax_row(scores[r * pitch : r * pitch + keys], inputs.mask, at, p)
        for block in range(beyond):
            b = address(packed_values) + 4 * block * keys * wide
            place = batch * p[Y_BATCH] + number * p[Y_HEAD] + first * p[Y_STEP]
            exist = min(wide, outputs - block * wide)
            to = address(y) + 4 * (place + block * wide)
            finish = (tile, address(zeros), 0, to, 4 * p[Y_STEP], exist, low, high, 0)
            call_tile(
                kernels[rows],
                (address(scores), 4 * pitch, address(offsets), 1, keys, b, 0, rows, 0, b, *finish),
            )


@loop
def _pack_head(
    inputs: AttentionInputs,
    p: Array,
    batch: int,
    head: int,
    factor: float,
    packed_keys: Array,
    packed_values: Array,
) -> None:
    """Packs keys, times the factor, and values of one head."""
    keys, wide = p[KEYS], p[COLUMNS]
    at = batch * p[K_BATCH] + head * p[K_HEAD]
    _pack_keys(inputs.k, at, p[K_STEP], keys, p[DEPTH], wide, factor, packed_keys)
    at = batch * p[V_BATCH] + head * p[V_HEAD]
    _pack_values(inputs.v, at, p[V_STEP], keys, p[OUTPUTS], wide, packed_values)


@loop
def _softmax_row(line: Array, mask: Array, at: int, p: Array) -> None:
    """The softmax of the scores of a query, after what the mask has from place `at` on."""
    if p[MASKED]:
        if p[MASK_KEY]:
            terms = mask[at : at + line.size]
            for j in range(line.size):
                line[j] += terms[j]
        else:
            term = mask[at]
            for j in range(line.size):
                line[j] += term
    top = row_maximum(line)
    if p[CLOSED_IS_ZERO] and top == np.float32(-np.inf):
        line[:] = 0
        return
    total = like(top, 0)
    for j in range(line.size):
        value = exp_below_zero(line[j] - top)
        line[j] = value
        total = add_in_any_order(total, value)
    share = like(top, 1) / total
    for j in range(line.size):
        line[j] *= share


@loop
def _pack_keys(
    k: Array, at: int, step: int, keys: int, depth: int, wide: int, factor: float, packed: Array
) -> None:
    """Keys times the factor, turned: for each block of columns (depth, keys of the block)."""
    for block in range(-(-keys // wide)):
        first = block * wide
        width = min(wide, keys - first)
        for d in range(depth):
            row = packed[(block * depth + d) * wide : (block * depth + d + 1) * wide]
            source = at + first * step + d
            for j in range(width):
                row[j] = k[source + j * step] * factor
            row[width:] = 0


@loop
def _pack_values(
    v: Array, at: int, step: int, keys: int, outputs: int, wide: int, packed: Array
) -> None:
    """Values in blocks of columns: for each block (keys, columns of the block)."""
    for block in range(-(-outputs // wide)):
        first = block * wide
        width = min(wide, outputs - first)
        for j in range(keys):
            row = packed[(block * keys + j) * wide : (block * keys + j + 1) * wide]
            source = at + j * step + first
            copy_row(v[source : source + width], row[:width])
            row[width:] = 0


def emit_attention(
    b: Builder,
    tensors: Sequence[Operand],
    strides: Sequence[Sequence[int]],
    sizes: Sequence[int],
    mask: Operand | None,
    scale: float,
    closed_is_zero: bool,
) -> bool:
    """Records attention of float32 tensors in one step, or nothing.

    Args:
        b: The builder.
        tensors: Queries, keys, values and the result.
        strides: Of each of them, in elements: batch, sequence, head.
        sizes: Batches, heads, heads that share keys, queries, keys, size of a key, of a value.
        mask: Added to the scores; broadcasts with (batches, heads, queries, keys).
        scale: Factor of the scores.
        closed_is_zero: Whether a query that the mask keeps from every key is 0 and not NaN.

    Returns:
        Whether it was done.
    """
    choice = native_choice(b.options)
    read = tensors if mask is None else [*tensors, mask]
    if choice is None or b.folding or any(x.dtype != np.float32 or not x.size for x in read):
        return False
    table = attention_table(
        choice.level, sizes, strides, None if mask is None else mask.shape, closed_is_zero
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
        b.constant(tile_kernels(choice.level, Arithmetic.F32)),
        b.constant(table),
        scale,
        work=math.prod(sizes[:2]) * math.prod(sizes[3:5]) * sum(sizes[5:]),
        exec_type=Arithmetic.F32.exec_type(choice.level),
    )
    return True


def attention_table(
    level: Level,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    mask: Sequence[int] | None,
    closed_is_zero: bool,
) -> Array:
    """The table of `attend_heads`; `mask` is a shape, the rest as `emit_attention` takes it."""
    places = [step for each in strides for step in each]
    steps = (0, 0, 0, 0) if mask is None else mask_strides(mask)
    flags = int(mask is not None), int(closed_is_zero)
    rows, columns = tile_rows(level, Arithmetic.F32), tile_columns(level)
    table = integers([*sizes, *places, *steps, *flags, 0, rows, columns])
    line = -(-sizes[4] // columns) * columns
    table[ROOM] = packed_floats(table) + rows * line + columns + _TILE + _LINE
    return table


def packed_floats(table: Array) -> int:
    """Floats of the packed keys and values of one head."""
    keys, depth, outputs, wide = (whole(table[i]) for i in (KEYS, DEPTH, OUTPUTS, COLUMNS))
    floats: int = (-(-keys // wide) * depth + -(-outputs // wide) * keys) * wide
    return floats


def mask_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours along each of four axes; 0 where the mask is broadcast."""
    strides, step = [], 1
    for size in reversed((1,) * (4 - len(shape)) + tuple(shape)):
        strides.append(step if size != 1 else 0)
        step *= size
    return tuple(reversed(strides))
