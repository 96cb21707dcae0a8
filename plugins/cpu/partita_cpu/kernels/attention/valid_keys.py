"""Attention of the standard over a cache of fixed capacity, whose valid part is given by lengths.

TensorScatter brings new keys and values into such a cache, and `nonpad_kv_seqlen` of Attention says
how many there are. Scores of places behind them are not computed.
"""

from __future__ import annotations

import math

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.shapes.symbolic_size import Number, integers
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.attention.attention_rows import NO_STAGE, Heads, Masking, check_sizes
from partita_cpu.kernels.attention.cache_blocks import Cache
from partita_cpu.kernels.attention.cache_elements import CACHES
from partita_cpu.kernels.attention.cache_steps import Counts, Scoring, attend_places
from partita_cpu.kernels.half import float32_of, narrow
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.operator_table import HALVES
from partita_cpu.scalar.math import copy_row

(BATCHES, KV_HEADS, GROUP, QUERIES, SIZE, BY_BATCH, BY_QUERY, BY_HEAD, KEYS) = range(9)
"""What the table of `pack_queries` holds. BY: elements of the queries from one to the next."""


@loop
def pack_queries(
    q: Array,
    lengths: Array,
    packed: Array,
    spans: Array,
    table: Array,
    scale: float,
    tid: int,
    nt: int,
) -> None:
    """Scaled queries, those of heads with the same keys side by side; spans of the keys.

    Args:
        q: Queries, flat.
        lengths: Keys of each batch; numbers that cannot be are brought to what can.
        packed: Receives (B, KV_HEADS, S, GROUP, SIZE), flat.
        spans: Receives int64 of (B, 2): keys before the queries and with them. With fewer keys
            than queries the first number is negative, and the first queries see none.
        table: As above.
        scale: Factor of the queries.
        tid: This thread.
        nt: All threads; they share batches and heads.
    """
    group, count, size = table[GROUP], table[QUERIES], table[SIZE]
    if tid == 0:
        for batch in range(table[BATCHES]):
            after = min(max(lengths[batch], 0), table[KEYS])
            spans[2 * batch], spans[2 * batch + 1] = after - count, after
    units = table[BATCHES] * table[KV_HEADS]
    factor = np.float32(scale)
    for unit in range(units * tid // nt, units * (tid + 1) // nt):
        batch, head = unit // table[KV_HEADS], unit % table[KV_HEADS]
        for s in range(count):
            for g in range(group):
                start = batch * table[BY_BATCH] + s * table[BY_QUERY]
                start += (head * group + g) * table[BY_HEAD]
                place = ((unit * count + s) * group + g) * size
                source, target = q[start : start + size], packed[place : place + size]
                for i in range(size):
                    target[i] = source[i] * factor


def has_valid_keys(q: Heads, k: Heads, v: Heads, masking: Masking, stage: int) -> bool:
    """Whether `attend_valid_keys` is for such an attention.

    It is for float32 and 16-bit floats, keys and values that lie head by head, masks with a number
    for each key or for the first ones, and windows of what came before.
    """
    mask = masking.mask
    tensors = [q.tensor, k.tensor, v.tensor]
    kinds = {x.dtype for x in tensors}
    plain = stage == NO_STAGE and not (k.last or v.last) and len(kinds) == 1 and kinds <= CACHES
    behind = masking.is_causal or masking.left == masking.right == -1
    if masking.lengths is None or masking.past or not plain or not behind:
        return False
    if not all(x.size for x in tensors) or q.count % max(k.count, 1):
        return False
    if mask is None:
        return True
    rows, keys = mask.shape[-2:] if 2 <= mask.ndim <= 4 else (0, 0)
    return rows in (1, q.length) and 0 < keys <= k.length


(PLANES, ROWS, NUMBERS, MASK_QUERIES, PLACES) = range(5)
"""What the table of `expand_mask` holds. PLANES: batches times heads of the mask; NUMBERS: of one
of its rows; MASK_QUERIES, PLACES: queries and keys that there are to be numbers for.
"""


@loop
def expand_mask(mask: Array, expanded: Array, table: Array, tid: int, nt: int) -> None:
    """A row for each query, with a number for each key; what the mask does not reach is closed.

    Args:
        mask: (PLANES, ROWS or 1, NUMBERS), flat.
        expanded: Receives (PLANES, MASK_QUERIES, PLACES), flat.
        table: As above.
        tid: This thread.
        nt: All threads; they share the rows.
    """
    rows, numbers, queries, places = table[ROWS], table[NUMBERS], table[MASK_QUERIES], table[PLACES]
    units = table[PLANES] * queries
    for unit in range(units * tid // nt, units * (tid + 1) // nt):
        row = unit // queries * rows + (unit % queries if rows > 1 else 0)
        target = expanded[unit * places : (unit + 1) * places]
        copy_row(mask[row * numbers : (row + 1) * numbers], target[:numbers])
        target[numbers:] = -np.inf


def _whole_mask(b: Builder, mask: Operand, queries: Number, places: Number) -> Operand:
    """A mask of four axes with a row for each query and a number for each key."""
    batch, heads, rows, numbers = mask.shape
    if (rows, numbers) == (queries, places):
        return mask
    expanded = b.empty((batch, heads, queries, places), np.float32)
    table = integers([batch * heads, rows, numbers, queries, places])
    b.call(expand_mask, b.flat(mask), b.flat(expanded), b.constant(table))
    return expanded


def attend_valid_keys(
    b: Builder, q: Heads, k: Heads, v: Heads, masking: Masking, scale: float | None, cap: float
) -> Operand:
    """As `attention_rows.attend`, over caches as they lie, of which only valid keys are read.

    Args:
        b: The builder.
        q: Queries.
        k: Keys, of the same type.
        v: Values.
        masking: Which keys queries see; its mask is of float32.
        scale: Factor of the scores; by default of the size of keys.
        cap: Their bound through tanh; 0 for none.
    """
    check_sizes(b, q, k, v, masking)
    kind, lengths, mask = q.tensor.dtype, masking.lengths, masking.mask
    if mask is not None:
        around = (1,) * (4 - mask.ndim) + mask.shape
        mask = _whole_mask(b, b.view(mask, around), q.length, k.length)
    q = Heads(float32_of(b, q.tensor), q.count, q.last)
    batch, queries = q.tensor.shape[0], q.length
    group, of_batches = q.count // k.count, (batch, k.count)
    packed = b.empty((*of_batches, queries, group, q.size), np.float32)
    spans = b.empty((batch, 2), np.int64)
    counts = Counts(*of_batches, group, queries, q.size, v.size, k.length)
    b.call(
        pack_queries,
        *(b.flat(x) for x in (q.tensor, lengths, packed, spans) if x is not None),
        b.constant(integers([*counts[:5], *q.strides, k.length])),
        float(1 / math.sqrt(q.size) if scale is None else scale),
    )
    made = b.empty((batch, queries, q.count, v.size), np.float32)
    window = masking.left + 1 if masking.left >= 0 else -1
    scoring = Scoring(mask, causal=masking.is_causal, window=window, cap=cap)
    attend_places(b, counts, spans, packed, Cache(k.tensor, v.tensor), scoring, made)
    if kind in HALVES:
        made = narrow(b, made, kind)
    if q.last:
        return made
    y = b.empty((batch, q.count, queries, v.size), kind)
    source = strides_of(made.shape)
    source[1], source[2] = source[2], source[1]
    copy_box(b, Box(made, source), Box(y, strides_of(y.shape)), y.shape)
    return y
