"""The softmax in the middle of attention, and the products round it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry.broadcasting import broadcast, is_repeated_to
from partita.lowering.shapes.symbolic_size import integers
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.nhwc.attention import emit_attention
from partita_cpu.nhwc.attention_table import HeadSizes, HeadView, Mask, Scores, mask_strides
from partita_cpu.scalar.instructions import like
from partita_cpu.scalar.math import copy_row, exp, tanh
from partita_cpu.threads import openblas

NO_STAGE = -1
"""Stages of the scores that an output may ask for: 0 scaled, 1 capped, 2 biased, 3 softmax."""


@loop
def softmax_scores(
    scores: Array,
    mask: Array,
    lengths: Array,
    seen: Array,
    table: Array,
    scale: float,
    cap: float,
    tid: int,
    nt: int,
) -> None:
    """Scale, cap, mask and softmax the scores in place; rows without any open key become 0 or NaN.

    Args:
        scores: (B, H, S, T) products of queries and keys, flat.
        mask: Added to them, flat; not read unless the table says so.
        lengths: Keys that count, per batch; not read unless the table says so.
        seen: Receives the scores as they are after one stage.
        table: B, H, S, T; the mask's strides for B, H and S and its length along T (-1 for no
            mask); whether there are lengths; keys before the first query; whether a query sees
            no later keys; how many keys to the left and to the right it sees (-1 for all);
            the stage to be seen (-1 for none); whether a row is NaN (0), 0 without open keys (1)
            or 0 wherever it would be NaN (2).
        scale: Factor of the scores.
        cap: Bound of the scores through tanh; 0 for none.
        tid: This thread.
        nt: All threads; they share the rows.
    """
    heads, queries, keys = table[1], table[2], table[3]
    masked, stage = table[7], table[13]
    factor, bound = like(scores[0], scale), like(scores[0], cap)
    least = like(scores[0], -math.inf)
    rows = scores.size // keys
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        line = scores[row * keys : (row + 1) * keys]
        shown = seen[row * keys : (row + 1) * keys] if stage >= 0 else line
        s = row % queries
        head = row // queries % heads
        batch = row // queries // heads
        for j in range(keys):
            line[j] *= factor
        if stage == 0:
            copy_row(line, shown)
        if cap != 0:
            for j in range(keys):
                line[j] = bound * tanh(line[j] / bound)
        if stage == 1:
            copy_row(line, shown)
        low, high, here = 0, keys, s + table[9]
        if table[8]:
            high = min(max(lengths[batch], 0), keys)
            here = s + high - queries
        if table[10]:
            high = min(high, here + 1)
        if table[11] >= 0:
            low = max(low, here - table[11])
        if table[12] >= 0:
            high = min(high, here + table[12] + 1)
        is_open = high > low
        if masked >= 0:
            high = min(high, masked)
            start = batch * table[4] + head * table[5] + s * table[6]
            is_open = not table[14]
            for j in range(low, high):
                term = mask[start + j]
                line[j] += term
                is_open = is_open or term > least
        low = max(min(low, high), 0)
        high = max(high, low)
        line[:low] = least
        line[high:] = least
        if stage == 2:
            copy_row(line, shown)
        _softmax_open(line, low, high, is_open, table[14])
        if stage == 3:
            copy_row(line, shown)


@loop(inline=True)
def _softmax_open(line: Array, low: int, high: int, is_open: bool, becomes_zero: int) -> None:
    """The softmax of the keys from `low` to `high`, 0 for all others.

    Args:
        line: The scores of a query.
        low: The first key that it sees.
        high: The key behind the last one.
        is_open: Whether what is added to scores leaves it any.
        becomes_zero: As in the table of `softmax_scores`; scores of -inf are no open keys.
    """
    zero = like(line[0], 0)
    top = like(line[0], -math.inf)
    for j in range(low, high):
        top = line[j] if line[j] > top else top
    if becomes_zero and top == like(top, -math.inf):  # which NaN does not rise above
        is_nan = False
        for j in range(low, high):
            is_nan = is_nan or line[j] != line[j]
        is_open = is_open and is_nan
    total = zero
    for j in range(low, high):
        value = exp(line[j] - top)
        line[j] = value
        total += value
    if becomes_zero == 2 and total != total:
        is_open = False
    share = like(top, 1) / total if is_open and total != 0 else zero
    line[:low] = zero
    line[high:] = zero
    for j in range(low, high):
        line[j] = line[j] * share if is_open else zero


@dataclass(frozen=True)
class Masking:
    """Which keys a query sees.

    Attributes:
        mask: Added to the scores; broadcasts with (B, H, S, T), or is shorter along T.
        lengths: int64 of (B,): keys that count.
        past: Keys before the first query.
        is_causal: Whether a query sees no later keys.
        left: How many keys to the left it sees; -1 for all.
        right: How many keys to the right it sees; -1 for all.
        closed_is_zero: Whether a query that sees no key is 0; otherwise it is NaN.
        nan_is_zero: Whether what a query would attend by is 0 instead of NaN, whatever made it so.
    """

    mask: Operand | None = None
    lengths: Operand | None = None
    past: int = 0
    is_causal: bool = False
    left: int = -1
    right: int = -1
    closed_is_zero: bool = True
    nan_is_zero: bool = False

    @property
    def only_adds(self) -> bool:
        """Whether the mask, if any, is all there is."""
        return self.lengths is None and not self.is_causal and self.left == self.right == -1

    @property
    def becomes_zero(self) -> int:
        """Which queries are 0 instead of NaN: 1 those that see no key, 2 all."""
        return 2 if self.nan_is_zero else int(self.closed_is_zero)


@dataclass(frozen=True)
class Heads:
    """A tensor of several heads: (B, H, S, D), or (B, S, H, D) where they come last.

    Attributes:
        tensor: Four-dimensional.
        count: Heads.
        last: Whether heads come behind the sequence.
    """

    tensor: Operand
    count: int
    last: bool = field(default=False)

    @property
    def length(self) -> int:
        """Of the sequence."""
        return self.tensor.shape[1 if self.last else 2]

    @property
    def size(self) -> int:
        """Of one head."""
        return self.tensor.shape[3]

    @property
    def strides(self) -> tuple[int, int, int]:
        """Elements from one batch, place of the sequence and head to the next."""
        _, outer, inner, size = self.tensor.shape
        steps = (inner * size, size)
        return (outer * inner * size, *(steps if self.last else steps[::-1]))

    def shape_of(self, batch: int, heads: int, length: int) -> tuple[int, ...]:
        """A shape in this layout, of as large heads."""
        return (batch, *((length, heads) if self.last else (heads, length)), self.size)


def attend(
    b: Builder,
    q: Heads,
    k: Heads,
    v: Heads,
    masking: Masking,
    scale: float | None,
    cap: float = 0.0,
    stage: int = NO_STAGE,
    last: bool | None = None,
) -> tuple[Operand, Operand | None]:
    """``softmax(scale * q @ k.T, masked) @ v``.

    Heads of q share those of k and v in groups, where there are fewer of these.

    Args:
        b: Records it.
        q: Queries.
        k: Keys, of the same batches and size of heads.
        v: Values, as many as there are keys.
        masking: Which keys a query sees, and what is added to their scores.
        scale: Factor of the scores; by default the inverse root of the size of a query's head.
        cap: Bound of the scores through tanh; 0 for none.
        stage: Which scores are returned too; see `NO_STAGE`.
        last: Whether the result has its heads behind its queries; by default as q has them.

    Returns:
        The result in q's layout, or with its heads last or not, and the scores at `stage`.

    Raises:
        OperandError: Their shapes do not fit each other.
    """
    batch, s, t = q.tensor.shape[0], q.length, k.length
    check_sizes(b, q, k, v, masking)
    scores = b.empty((batch, q.count, s, t), q.tensor.dtype)
    seen = b.empty(scores.shape, scores.dtype) if stage != NO_STAGE else None
    last = q.last if last is None else last
    out = (batch, s, q.count, v.size) if last else (batch, q.count, s, v.size)
    y = b.empty(out, q.tensor.dtype)
    scale = float(1 / math.sqrt(q.size) if scale is None else scale)
    if (
        cap == 0
        and seen is None
        and _emit_at_once(b, q, k, v, Heads(y, q.count, last), masking, scale)
    ):
        return y, None
    work = scores.size * (q.size + v.size)
    if scores.size:
        operands = q.tensor, k.tensor, scores, q.last, k.last, k.count
        b.call_numpy(_score, *operands, work=work, exec_type="blas")
        _emit_softmax(b, scores, seen, masking, scale, cap, stage)
    if y.size:
        operands = scores, v.tensor, y, v.last, last, v.count
        b.call_numpy(_mix, *operands, work=work, exec_type="blas")
    return y, seen


def check_sizes(b: Builder, q: Heads, k: Heads, v: Heads, masking: Masking) -> None:
    """Refuses shapes that do not fit each other.

    Raises:
        OperandError: They do not.
    """
    same = q.tensor.shape[0] == k.tensor.shape[0] == v.tensor.shape[0]
    fits = same and k.count == v.count and k.length == v.length and k.size == q.size
    mask, lengths = masking.mask, masking.lengths
    if mask is not None:
        # Keys that it does not reach are closed.
        around = (1,) * (4 - mask.ndim) + mask.shape
        scores = (q.tensor.shape[0], q.count, q.length, k.length)
        fits = fits and len(around) == 4 and around[3] <= max(k.length, 1)
        fits = fits and all(map(is_repeated_to, around[:3], scores[:3]))
    if lengths is not None:
        fits = fits and lengths.size == q.tensor.shape[0]
    if not fits or q.count % max(k.count, 1):
        given = [x.shape for x in (q.tensor, k.tensor, v.tensor, mask, lengths) if x is not None]
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}): query, key, value and mask of "
            f"shapes {', '.join(str(list(shape)) for shape in given)} do not fit each other."
        )


def _emit_at_once(
    b: Builder, q: Heads, k: Heads, v: Heads, y: Heads, masking: Masking, scale: float
) -> bool:
    """Records everything as one native step; whether that could be done.

    Args:
        b: The builder.
        q: Queries.
        k: Keys.
        v: Values.
        y: The result.
        masking: Which keys a query sees, and what is added.
        scale: Of the scores.
    """
    mask, batch = masking.mask, q.tensor.shape[0]
    scores = (batch, q.count, q.length, k.length)
    if not k.count or not masking.only_adds or (mask is not None and mask.shape[-1] != k.length):
        return False
    if mask is not None and broadcast(scores, mask.shape) != scores:
        return False
    parts = [HeadView(x.tensor, x.strides) for x in (q, k, v, y)]
    shared = q.count // k.count
    sizes = HeadSizes(batch, q.count, shared, q.length, k.length, q.size, v.size)
    masks = [] if mask is None else [Mask.broadcast(mask, batch)]
    return emit_attention(b, parts, sizes, Scores(scale, masks, becomes_zero=masking.becomes_zero))


def _emit_softmax(
    b: Builder,
    scores: Operand,
    seen: Operand | None,
    masking: Masking,
    scale: float,
    cap: float,
    stage: int,
) -> None:
    """Records the softmax of scores, in their place.

    Args:
        b: The builder.
        scores: (batch, head, query, key).
        seen: Gets the scores of a stage before the softmax; None for none.
        masking: Which keys a query sees, and what is added.
        scale: Of the scores.
        cap: Their bound; 0 for none.
        stage: The stage whose scores are kept.
    """
    mask, lengths = masking.mask, masking.lengths
    strides = (
        (0, 0, 0, -1) if mask is None else (*mask_strides(mask.shape)[:3], (1, *mask.shape)[-1])
    )
    limits = [int(lengths is not None), masking.past, int(masking.is_causal)]
    # Windows that are wider than all there is see no more, and would overflow sums.
    most = masking.past + scores.shape[2] + scores.shape[3]
    sides = (min(masking.left, most), min(masking.right, most))
    table = [*scores.shape, *strides, *limits, *sides, stage]
    table.append(masking.becomes_zero)
    b.call(
        softmax_scores,
        b.flat(scores),
        b.flat(scores if mask is None else mask),
        b.constant(np.zeros(1, np.int64)) if lengths is None else b.flat(lengths),
        b.flat(scores if seen is None else seen),
        b.constant(integers(table)),
        scale,
        float(cap),
        work=8 * scores.nbytes,
    )


def _grouped(x: Array, last: bool, groups: int) -> Array:
    """A view of several heads as (B, groups, heads of a group, S, D)."""
    if last:
        batch, s, heads, d = x.shape
        return x.reshape(batch, s, groups, heads // groups, d).transpose(0, 2, 3, 1, 4)
    batch, heads, s, d = x.shape
    return x.reshape(batch, groups, heads // groups, s, d)


def _score(q: Array, k: Array, scores: Array, q_last: bool, k_last: bool, groups: int) -> None:
    """Products of queries and keys.

    Args:
        q: Queries.
        k: Keys.
        scores: Gets them (batch, head, query, key).
        q_last: Whether heads of queries come behind tokens.
        k_last: Whether heads of keys do.
        groups: Heads of keys; neighbouring heads of queries share one.
    """
    keys = _grouped(k, k_last, groups).swapaxes(-1, -2)
    openblas.matmul(_grouped(q, q_last, groups), keys, out=_grouped(scores, False, groups))


def _mix(scores: Array, v: Array, y: Array, v_last: bool, y_last: bool, groups: int) -> None:
    """Sums of values, weighted by the scores' softmax.

    Args:
        scores: The softmax (batch, head, query, key).
        v: Values.
        y: Gets the sums.
        v_last: Whether heads of values come behind tokens.
        y_last: Whether heads of the result do.
        groups: Heads of values; neighbouring heads of queries share one.
    """
    values = _grouped(v, v_last, groups)
    openblas.matmul(_grouped(scores, False, groups), values, out=_grouped(y, y_last, groups))
