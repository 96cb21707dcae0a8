"""GroupQueryAttention of onnxruntime: attention of new tokens over a cache, which they join."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason
from partita.errors import CompileError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.cache_places import grows, present_places
from partita.lowering.kernel_table import (
    CODES,
    refused_attribute,
    refused_caches,
    refused_input,
)
from partita.lowering.shapes.symbolic_size import Number, evaluated, integer, integers, settled
from partita.system.processors import usable_processors
from partita.tensors.cache_rows import is_quantized, row_bytes
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.kernels.attention.cache_append import (
    Caches,
    RotatedQueries,
    append_kernel,
    scratch_floats,
)
from partita_cpu.kernels.attention.cache_blocks import Cache
from partita_cpu.kernels.attention.cache_elements import CACHES
from partita_cpu.kernels.attention.cache_spans import spans_of
from partita_cpu.kernels.attention.cache_steps import (
    Counts,
    Scoring,
    attend_places,
    rotates_queries,
)
from partita_cpu.kernels.attention.new_heads import NewHeads
from partita_cpu.kernels.half import float32_of, narrow
from partita_cpu.kernels.operator_table import F32, HALVES, INT64, kernel, with_inputs

_INT32 = frozenset({np.dtype(np.int32)})
_NO_LIMIT = 1 << 62
_QUERIES_OF_ALL = F32 | HALVES


class GroupQueryInputs(NamedTuple):
    """Inputs of GroupQueryAttention."""

    query: Operand
    key: Operand | None
    value: Operand | None
    past_key: Operand | None
    past_value: Operand | None
    lengths: Operand
    total: Operand
    cosines: Operand | None = None
    sines: Operand | None = None
    positions: Operand | None = None
    bias: Operand | None = None
    sinks: Operand | None = None
    key_scale: Operand | None = None
    value_scale: Operand | None = None
    query_norm: Operand | None = None
    key_norm: Operand | None = None


@dataclass(frozen=True)
class Sizes:
    """Of one operation: batches, heads, heads of keys, new tokens, size of a head, places.

    And elements that the cache has for a head of one token.
    """

    batch: Number
    heads: int
    kv_heads: int
    queries: Number
    size: int
    past: Number
    places: Number
    row: int


_DEFAULTS = {"qk_output": 0, "sliding_window_cache": 0}
"""Attributes that must be as they are if they are left out."""


_LEFT_OUT = {12: "k_scale", 13: "v_scale", 16: "query_seqlens"}
"""Inputs that must be left out."""


def _check(node: Node) -> Reason | None:
    sees_all = not node.attrs.get("causal", 1)
    windows = refused_attribute(node, {"local_window_size": -1}) if sees_all else None
    refused = refused_attribute(node, _DEFAULTS) or refused_input(node, _LEFT_OUT)
    return windows or refused or refused_caches(node, CACHES, node.input(3), node.input(4))


@kernel(
    "GroupQueryAttention",
    domain="com.microsoft",
    dtypes={
        **dict.fromkeys((0, 1, 2, 7, 8, 10, 11, 14, 15), _QUERIES_OF_ALL),
        **dict.fromkeys((3, 4), CACHES | CODES),
        **dict.fromkeys((5, 6), _INT32),
        9: INT64,
    },
    check=_check,
    outputs=3,
    in_place={1: 3, 2: 4},
)
@with_inputs(GroupQueryInputs)
def group_query_attention(
    b: Builder, node: Node, inputs: GroupQueryInputs
) -> tuple[Operand, Operand, Operand]:
    """Attention of new tokens over all before them; present is past with what is new.

    Present is as long as past is, or as the total length if that is known when the program is made
    and is more. So a cache of fixed capacity is one program for all lengths. Where the model calls
    both lengths differently, the total length has to be known.
    """
    if inputs.past_key is not None and grows(node):
        inputs = inputs._replace(total=b.constant(b.value(inputs.total)))
    sizes = _sizes_of(node, inputs)
    kind = inputs.query.dtype
    shape = (sizes.batch, sizes.kv_heads, sizes.places, sizes.row)
    pasts = inputs.past_key, inputs.past_value
    if reason := refused_caches(node, CACHES, *pasts):
        raise CompileError(f"Operation '{node.name}' ({node.model_kind}): {reason.detail}.")
    kinds = {past.dtype for past in pasts if past is not None}
    if len(kinds) > 1:  # kernels walk through both by the type of the keys
        found = " and ".join(sorted(map(str, kinds)))
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}): past keys and values are {found}; "
            "expected one type, as by a Cast."
        )
    keys, values = (b.empty(shape, kind if past is None else past.dtype) for past in pasts)
    y = b.empty((*inputs.query.shape[:2], sizes.heads * sizes.size), np.float32)
    if y.size:
        wide = _wide(b, node, inputs)
        spans = spans_of(b, inputs.lengths, inputs.total, wide.positions, _limits(wide, sizes))
        of_heads = sizes.batch, sizes.kv_heads, sizes.heads // sizes.kv_heads, sizes.queries
        counts = Counts(*of_heads, sizes.size, sizes.size, sizes.places)
        queries = _append(b, node, wide, counts, sizes, spans, (keys, values))
        _attend(b, node, wide, counts, spans, queries, Cache(keys, values), y)
    else:
        for past, present in zip(pasts, (keys, values), strict=True):
            if past is not None:
                b.call_numpy(_keep, past, present)
    return (narrow(b, y, kind) if kind in HALVES else y), keys, values


def _keep(past: Array, present: Array) -> None:
    """What a run without tokens does."""
    present[:, :, : past.shape[2]] = past
    present[:, :, past.shape[2] :] = 0


def _wide(b: Builder, node: Node, inputs: GroupQueryInputs) -> GroupQueryInputs:
    """The inputs with all but the cache in float32; without those of rotation if there is none."""
    wide: dict[str, Any] = {
        name: float32_of(b, x)
        for name, x in inputs._asdict().items()
        if x is not None and not name.startswith("past")
    }
    if not node.attrs.get("do_rotary", 0):
        wide |= dict.fromkeys(("cosines", "sines", "positions"))
    return inputs._replace(**wide)


def _limits(inputs: GroupQueryInputs, sizes: Sizes) -> tuple[Number, Number, Number, Number]:
    """Batches, new tokens, places that there are keys and terms for, positions that have angles."""
    room = sizes.places
    if inputs.bias is not None:
        room = evaluated(min, room, inputs.bias.shape[3])
    positions = _NO_LIMIT if inputs.cosines is None else inputs.cosines.shape[0]
    return sizes.batch, sizes.queries, room, positions


def _sizes_of(node: Node, inputs: GroupQueryInputs) -> Sizes:
    heads, kv_heads = int(node.attrs["num_heads"]), int(node.attrs["kv_num_heads"])
    batch, queries, width = inputs.query.shape
    each = heads if inputs.key is not None else heads + 2 * kv_heads
    size = settled(width // each)
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
    places = queries if inputs.past_key is None else past
    if inputs.total.const is not None and inputs.past_key is not None:
        places = present_places(past, queries, integer(inputs.total.const.reshape(-1)[0]))
    row = row_bytes(size) if is_quantized(node.attrs) else size
    return Sizes(batch, heads, kv_heads, queries, size, past, places, row)


def _append(
    b: Builder,
    node: Node,
    inputs: GroupQueryInputs,
    counts: Counts,
    sizes: Sizes,
    spans: Operand,
    present: tuple[Operand, Operand],
) -> NewHeads | Operand:
    """Records how new tokens come into the cache.

    Returns:
        Their queries: rotated and scaled, or as they are given where attention rotates them.

    Args:
        b: The builder.
        node: The operation.
        inputs: Its inputs.
        counts: Sizes of the step.
        sizes: Sizes of the cache and of what is appended.
        spans: For each sequence, tokens before the new ones, and all of them.
        present: Keys and values, with the new ones.
    """
    threads = b.options.threads if isinstance(b.options, PrecisionPolicy) else usable_processors()
    queries, keys, (values, *of_values) = _new_heads(b, node, inputs, sizes)
    later = rotates_queries(b, counts)
    heads = 0 if later else sizes.heads
    shape = (sizes.batch, heads, sizes.queries, sizes.size)
    rotated = b.zeros(1, np.float32) if later else b.empty(shape, np.float32)
    pasts = zip((inputs.past_key, inputs.past_value), present, strict=True)
    before = (b.zeros(1, x.dtype) if old is None else b.flat(old) for old, x in pasts)
    table = sizes.batch, heads, sizes.kv_heads, sizes.queries, sizes.size, sizes.past, sizes.places
    b.call(
        append_kernel,
        Caches(*before, *(b.flat(x) for x in present)),
        queries,
        keys,
        values,
        b.flat(spans),
        RotatedQueries(
            b.flat(rotated), b.empty((threads * scratch_floats(sizes.size),), np.float32)
        ),
        b.constant(integers([*table, *of_values])),
    )
    return queries if later else rotated


def _new_heads(
    b: Builder, node: Node, inputs: GroupQueryInputs, sizes: Sizes
) -> tuple[NewHeads, NewHeads, tuple[Operand, Number, Number]]:
    """Queries, keys and values of new tokens; of values a token's pitch and the first element."""
    nothing = b.zeros(1, np.float32)
    tables = inputs.cosines, inputs.sines
    cosines, sines = (nothing if x is None else b.flat(x) for x in tables)
    positions = b.zeros(1, np.int64) if inputs.positions is None else b.flat(inputs.positions)
    rotated = 0 if inputs.cosines is None else 2 * inputs.cosines.shape[1]
    interleaved = int(node.attrs.get("rotary_interleaved", 0))
    flags = rotated, interleaved, int(inputs.positions is not None)
    epsilon = node.number("qk_norm_epsilon", 1e-6)
    size, group = sizes.size, sizes.heads // sizes.kv_heads
    packed = inputs.key is None or inputs.value is None
    q = b.flat(inputs.query)
    k, v = (q if packed or x is None else b.flat(x) for x in (inputs.key, inputs.value))
    width, part = inputs.query.shape[2], sizes.kv_heads * size
    pitch, start = (width, sizes.heads * size) if packed else (part, 0)

    def heads(
        rows: Operand, norm: Operand | None, name: str, places: list[Number], scale: float
    ) -> NewHeads:
        table = b.constant(integers([*places, *flags, int(norm is not None)]))
        weights = nothing if norm is None else b.flat(norm)
        least = node.number(f"{name}_norm_epsilon", epsilon)
        return NewHeads(rows, cosines, sines, positions, weights, table, least, scale)

    scale = float(node.attrs.get("scale") or 1 / math.sqrt(size))
    of_queries = [sizes.queries * width, group * size, size, width, 0]
    of_keys = [sizes.queries * pitch, size, 0, pitch, start]
    queries = heads(q, inputs.query_norm, "q", of_queries, scale)
    keys = heads(k, inputs.key_norm, "k", of_keys, 1.0)
    return queries, keys, (v, pitch, start + part if packed else 0)


def _attend(
    b: Builder,
    node: Node,
    inputs: GroupQueryInputs,
    counts: Counts,
    spans: Operand,
    queries: NewHeads | Operand,
    cache: Cache,
    y: Operand,
) -> None:
    """Records the attention of queries over the cache.

    Args:
        b: The builder.
        node: The operation.
        inputs: Its inputs.
        counts: Sizes of the step.
        spans: For each sequence, tokens before the new ones, and all of them.
        queries: What `_append` returned.
        cache: Present keys and values.
        y: The result.
    """
    scoring = Scoring(
        inputs.bias,
        inputs.sinks,
        sinking=inputs.sinks is not None or bool(node.attrs.get("smooth_softmax", 0)),
        causal=bool(node.attrs.get("causal", 1)),
        window=int(node.attrs.get("local_window_size", -1)),
        cap=float(node.attrs.get("softcap", 0.0)),
    )
    attend_places(b, counts, spans, queries, cache, scoring, y)
