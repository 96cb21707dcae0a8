"""Operators of onnxruntime that decoders of language models are made of, in float64.

``onnx.reference`` knows none of them. Each is written from the operator's documentation
(ContribOperators.md of onnxruntime); tests compare it with onnxruntime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference.op_run import OpRun

from partita.lowering.corrected_reference.axes import axis_of
from partita.tensors import cache_rows

Array = np.ndarray[Any, Any]

MICROSOFT = "com.microsoft"

CACHE_STAYS = "partita_cache_stays"
"""An attribute of our own: the model declares that present is as long as past."""

_NEEDED: dict[str, dict[str, Any]] = {
    "GroupQueryAttention": {"qk_output": 0, "sliding_window_cache": 0},
    "RotaryEmbedding": {"is_packed_batching": 0, "scale": 1.0},
}
"""Attributes that must be as they are if they are left out."""

_LEFT_OUT = {"GroupQueryAttention": (12, 13, 16)}
"""Inputs that must be left out.

Scales of a quantized cache, lengths of right-padded chunks."""


def unread(node: ir.Node) -> str | None:
    """The first attribute or input of an operation that is not implemented here, if it counts."""
    if node.domain != MICROSOFT:
        return None
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    needed = _NEEDED.get(node.op_type, {})
    if node.op_type == "GroupQueryAttention":
        quantized = cache_rows.is_quantized(given)
        needed = {**needed, **(cache_rows.ATTRIBUTES if quantized else cache_rows.OF_NUMBERS)}
    for name, due in needed.items():
        if given.get(name, due) != due:
            return name
    for place in _LEFT_OUT.get(node.op_type, ()):
        if place < len(node.inputs) and node.inputs[place] is not None:
            return f"input {place}"
    return None


class GroupQueryAttention(OpRun):
    """Attention of new tokens over a cache that they are added to.

    Present is past with the new tokens written behind the valid ones, and as long as the total
    length if that is more, unless the model declares it to be as long; outputs of tokens that are
    padding are 0.
    """

    op_domain = MICROSOFT
    op_schema = None

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Array, Array, Array]:
        given = _Inputs(*inputs)
        heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
        q, k, v = _tokens(given, heads, kv_heads)
        norms = given.query_norm, given.key_norm
        if norms[0] is not None and norms[1] is not None:
            epsilon = attributes.get("qk_norm_epsilon", 1e-6)
            q = _normalized(q, norms[0], attributes.get("q_norm_epsilon", epsilon))
            k = _normalized(k, norms[1], attributes.get("k_norm_epsilon", epsilon))
        past = 0 if given.past_key is None else given.past_key.shape[2]
        most = past if attributes.get(CACHE_STAYS, 0) else past + q.shape[1]
        spans = _spans(given, q.shape[1], past, most)
        places = max(past, int(given.total.reshape(-1)[0]))
        quantized, size = cache_rows.is_quantized(attributes), k.shape[3]
        row = cache_rows.row_bytes(size) if quantized else size
        _require_caches(given, quantized)
        room = q.shape[0], kv_heads, places, row
        keys = _with_room(given.past_key, room, given.query.dtype)
        values = _with_room(given.past_value, room, given.query.dtype)
        y = np.zeros(q.shape)
        for row, (before, after) in enumerate(spans):
            new = min(q.shape[1], after - before)
            queries, added = q[row, :new], k[row, :new]
            if attributes.get("do_rotary", 0):
                at = np.arange(before, before + new)
                at = at if given.positions is None else given.positions[row, :new]
                tables = given.cosines, given.sines, at
                interleaved = bool(attributes.get("rotary_interleaved", 0))
                queries = rotated(queries, *tables, interleaved)
                added = rotated(added, *tables, interleaved)
            for whole, part in ((keys, added), (values, v[row, :new])):
                rows = part.swapaxes(0, 1)
                rows = cache_rows.encoded(rows) if quantized else rows
                whole[row, :, before : before + new] = rows
            cache = keys[row, :, :after], values[row, :, :after]
            if quantized:
                cache = cache_rows.decoded(cache[0], size), cache_rows.decoded(cache[1], size)
            bias = None if given.bias is None else given.bias[row % len(given.bias)]
            y[row, :new] = _attended(queries, *cache, before, bias, given.sinks, attributes)
        return y.reshape(*q.shape[:2], -1).astype(given.query.dtype), keys, values


@dataclass(frozen=True)
class _Inputs:
    """Inputs of GroupQueryAttention."""

    query: Any
    key: Any
    value: Any
    past_key: Any
    past_value: Any
    lengths: Any
    total: Any
    cosines: Any = None
    sines: Any = None
    positions: Any = None
    bias: Any = None
    sinks: Any = None
    key_scale: Any = None
    value_scale: Any = None
    query_norm: Any = None
    key_norm: Any = None


def _tokens(given: _Inputs, heads: int, kv_heads: int) -> list[Array]:
    """Queries, keys and values by row, token and head."""
    parts = [given.query, given.key, given.value]
    if given.key is None:
        size = given.query.shape[2] // (heads + 2 * kv_heads)
        parts = np.split(given.query, [heads * size, (heads + kv_heads) * size], axis=2)
    counts = heads, kv_heads, kv_heads
    return [
        part.astype(np.float64).reshape(*part.shape[:2], count, -1)
        for part, count in zip(parts, counts, strict=True)
    ]


def _require_caches(given: _Inputs, quantized: bool) -> None:
    """Looks at the types of caches.

    Raises:
        ValueError: They are not what attributes tell.
    """
    for cache in (given.past_key, given.past_value):
        kind = None if cache is None else cache.dtype
        fits = kind == np.int8 if quantized else kind != np.int8
        if not fits:
            raise ValueError(f"a cache is {kind}; attributes say that it is int8: {quantized}")


def _with_room(past: Any, shape: tuple[int, ...], kind: Any) -> Array:
    """The past, and 0 where there is none yet."""
    made = np.zeros(shape, kind if past is None else past.dtype)
    if past is not None:
        made[:, :, : past.shape[2]] = past
    return made


def _spans(given: _Inputs, count: int, past: int, most: int) -> list[tuple[int, int]]:
    """For each row its keys before the run and after it.

    Args:
        given: The inputs.
        count: New tokens of a row.
        past: Places of the cache before the run.
        most: Places that it may have after the run.

    Raises:
        ValueError: Lengths do not fit the cache, or each other.
    """
    total, spans = int(given.total.reshape(-1)[0]), []
    if not count <= total <= most:
        raise ValueError(
            f"total_sequence_length is {total}; with {count} new tokens it may be {count} to "
            f"{most}, which is what the cache has room for"
        )
    for row, length in enumerate(given.lengths.reshape(-1).tolist()):
        after = length + 1
        before = 0 if total == count else after - count
        if not 0 < after <= total or not 0 <= before <= past:
            raise ValueError(
                f"seqlens_k of row {row} is {length}, total_sequence_length {total}; they do not "
                f"fit {count} new tokens and a past of {past}"
            )
        spans.append((before, after))
    return spans


def _attended(
    q: Array,
    keys: Array,
    values: Array,
    before: int,
    bias: Any,
    sinks: Any,
    attributes: dict[str, Any],
) -> Array:
    """The attention of one row's queries (token, head, size) over its valid keys.

    Args:
        q: Queries.
        keys: Valid keys (head, token, size).
        values: Valid values, likewise.
        before: Tokens of the cache that come before the first query.
        bias: Added to the scores, (head or 1, query, key) or more of each; None for nothing.
        sinks: For each head, a score that takes part in the softmax and has no value; None for
            none.
        attributes: The operator's.
    """
    count, heads, size = q.shape
    group = heads // keys.shape[0]
    k, v = (np.repeat(x.astype(np.float64), group, axis=0) for x in (keys, values))
    scale = float(attributes.get("scale") or 1 / math.sqrt(size))
    scores = np.einsum("shd,htd->hst", q, k) * scale
    cap = float(attributes.get("softcap", 0.0))
    if cap:
        scores = cap * np.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias[:, :count, : keys.shape[1]]
    places, here = np.arange(keys.shape[1]), before + np.arange(count)[:, None]
    is_open = places <= (here if attributes.get("causal", 1) else keys.shape[1])
    window = attributes.get("local_window_size", -1)
    if window >= 0:
        is_open &= places > here - window
    if sinks is None and attributes.get("smooth_softmax", 0):
        sinks = np.zeros(heads)
    shares = _shares(np.where(is_open, scores, -np.inf), sinks)
    result: Array = np.einsum("hst,htd->shd", shares, v)
    return result


def _shares(scores: Array, sinks: Array | None) -> Array:
    """The softmax along the last axis; a sink is in the sum of its head and no share of its own."""
    own = np.full((1, 1, 1), -np.inf)
    if sinks is not None:
        own = sinks.astype(np.float64).reshape(-1, 1, 1)
    top = np.maximum(scores.max(axis=-1, keepdims=True), own)
    top = np.where(np.isneginf(top), 0, top)
    powers = np.exp(scores - top)
    total = powers.sum(axis=-1, keepdims=True) + np.exp(own - top)
    shares: Array = np.divide(powers, total, out=np.zeros_like(powers), where=total != 0)
    return shares


def _normalized(x: Array, weights: Array, epsilon: float) -> Array:
    """The last axis to square mean 1, times weights."""
    wide = x.astype(np.float64)
    root = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + float(epsilon))
    result: Array = wide / root * weights.astype(np.float64)
    return result


def rotated(x: Array, cosines: Array, sines: Array, at: Array, interleaved: bool) -> Array:
    """Pairs of elements of each head, turned by the angles of the token's position.

    Args:
        x: float64 of (tokens, heads, size).
        cosines: (positions, pairs).
        sines: The same.
        at: The position of each token.
        interleaved: Whether pairs are neighbours; else one is behind all the firsts.

    Raises:
        ValueError: There is no such position.
    """
    if at.size and not 0 <= at.min() <= at.max() < len(cosines):
        raise ValueError(f"positions are {at.min()} to {at.max()}; tables have {len(cosines)}")
    pairs = cosines.shape[1]
    cosine, sine = (table.astype(np.float64)[at][:, None] for table in (cosines, sines))
    first, second = (slice(0, pairs), slice(pairs, 2 * pairs))
    if interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    y = x.copy()
    y[..., first] = x[..., first] * cosine - x[..., second] * sine
    y[..., second] = x[..., second] * cosine + x[..., first] * sine
    return y


class RotaryEmbedding(OpRun):
    """Turns pairs of elements of each head by angles that the token's position tells."""

    op_domain = MICROSOFT
    op_schema = None

    def _run(
        self, x: Array, positions: Array, cosines: Array, sines: Array, **attributes: Any
    ) -> tuple[Array]:
        heads, part = attributes.get("num_heads", 0), attributes.get("rotary_embedding_dim", 0)
        batch, length = (x.shape[0], x.shape[1 if x.ndim == 3 else 2])
        size = x.shape[-1] if x.ndim == 4 else _head_size(x.shape[2], heads, part, cosines)
        by_token = x.swapaxes(1, 2) if x.ndim == 4 else x.reshape(batch, length, -1, size)
        at = np.arange(length)[None] + positions.reshape(-1)[0]
        if positions.size > 1 or positions.ndim == 2:
            at = positions.reshape(batch, length)
        interleaved = bool(attributes.get("interleaved", 0))
        wide = by_token.astype(np.float64)
        rows = [
            rotated(row, cosines, sines, places, interleaved)
            for row, places in zip(wide, np.broadcast_to(at, (batch, length)), strict=True)
        ]
        y = np.stack(rows) if rows else wide
        y = y.swapaxes(1, 2) if x.ndim == 4 else y.reshape(x.shape)
        return (np.ascontiguousarray(y).astype(x.dtype),)


def _head_size(width: int, heads: int, part: int, cosines: Array) -> int:
    """Of rows in which heads lie side by side: the tables tell, unless only a part is turned."""
    return width // heads if part else 2 * int(cosines.shape[1])


class SimplifiedLayerNormalization(OpRun):
    """Division by the root of the mean square over all axes from one on; no mean is taken off."""

    op_domain = MICROSOFT
    op_schema = None

    def _run(self, x: Array, scale: Array, **attributes: Any) -> tuple[Array, ...]:
        axis = axis_of(x.ndim, attributes.get("axis", -1))
        rows = x.astype(np.float64).reshape(*x.shape[:axis], math.prod(x.shape[axis:]))
        square = (rows * rows).mean(axis=-1, keepdims=True)
        inverse = 1 / np.sqrt(square + float(attributes.get("epsilon", np.float32(1e-5))))
        y = (rows * inverse).reshape(x.shape) * scale.astype(np.float64)
        kept = (*x.shape[:axis], *(1,) * (x.ndim - axis))
        results = y.astype(scale.dtype), inverse.reshape(kept).astype(np.float32)
        return results[: len(self.onnx_node.output)]


class SimplifiedLayerNormalizationOfOnnx(SimplifiedLayerNormalization):
    """The same under ONNX's own domain, where onnxruntime's files have it too."""

    op_domain = ""


SimplifiedLayerNormalizationOfOnnx.__name__ = "SimplifiedLayerNormalization"


class RMSNormalization(SimplifiedLayerNormalizationOfOnnx):
    """The same by its name in ONNX; the original gives the type of the first input."""


class SkipSimplifiedLayerNormalization(OpRun):
    """The same of a sum of two or three terms, which is the last output."""

    op_domain = MICROSOFT
    op_schema = None

    def _run(
        self, x: Array, skip: Array, scale: Array, bias: Array | None = None, **attributes: Any
    ) -> tuple[Array, ...]:
        total = x.astype(np.float64) + skip
        if bias is not None:
            total = total + bias
        root = (total * total).mean(axis=-1, keepdims=True)
        inverse = 1 / np.sqrt(root + float(attributes.get("epsilon", np.float32(1e-12))))
        y = (total * inverse * scale).astype(x.dtype)
        unused = np.zeros_like(inverse, np.float32)
        results = y, unused, inverse.astype(np.float32), total.astype(x.dtype)
        return results[: len(self.onnx_node.output)]


DECODER: list[type[OpRun]] = [
    GroupQueryAttention,
    RotaryEmbedding,
    SimplifiedLayerNormalization,
    SimplifiedLayerNormalizationOfOnnx,
    RMSNormalization,
    SkipSimplifiedLayerNormalization,
]
