"""GroupQueryAttention: attention of new tokens over a cache of keys and values, which they join."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.cache_places import grows
from partita.lowering.kernel_table import (
    CODES,
    refused_attribute,
    refused_caches,
    refused_input,
)
from partita_opencl.emitters.elementwise import convert
from partita_opencl.emitters.heads.cache_operands import (
    MOST_ELEMENTS,
    Inputs,
    Sizes,
    bias_steps,
    scale_of,
    score_options,
    tensors,
    token_options,
    turns,
)
from partita_opencl.emitters.heads.cache_prompt import by_matrix_units
from partita_opencl.emitters.operator_table import FLOATS, DTypes, operator
from partita_opencl.launches.emitter_kit import Kit, f32, i32, ints, is_half
from partita_opencl.launches.steps import FAULT, Counters
from partita_opencl.launches.tensor_moves import copy_box, pad_zeros

_ITEMS, _PROMPT_ITEMS = 256, 128
"""Items of a group, for one token and for several."""

_FEW_ITEMS = 32
"""The same where an item has a whole key."""

_WIDTH = 8
"""Elements of a key that an item has."""

_ROWS = 8
"""Queries of a group: what it keeps in registers grows with them."""

_SCORES, _PROMPT_SCORES = 8, 16
"""Scores that an item works on at a time, for one token and for several."""

_FEW_TOKENS = 4
"""So many come into the cache where they are attended to; more have a kernel of their own first."""

_SPLITS, _LEAST_PLACES = 32, 64
"""Most parts that keys are cut in, and places of the cache for each of them."""

_ALL_ALIKE = {"qk_output": 0, "sliding_window_cache": 0}
"""Attributes that must be as they are if they are left out."""

_LEFT_OUT = {
    9: "position_ids",
    11: "head_sink",
    12: "k_scale",
    13: "v_scale",
    14: "q_norm_weight",
    15: "k_norm_weight",
    16: "query_seqlens",
}
"""Inputs that must be left out."""


def _check(node: Node) -> Reason | None:
    if reason := refused_attribute(node, _ALL_ALIKE):
        return reason
    sees_all = not node.attrs.get("causal", 1)
    if sees_all and (reason := refused_attribute(node, {"local_window_size": -1})):
        return reason
    if node.attrs.get("smooth_softmax", 0) > 0:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "smooth_softmax is 1; takes 0")
    if reason := refused_input(node, _LEFT_OUT):
        return reason
    if reason := refused_caches(node, FLOATS, node.input(3), node.input(4)):
        return reason
    query, heads = node.input(0), int(node.attrs["num_heads"])
    if query is not None and query.shape and isinstance(query.shape[-1], int):
        parts = heads + (2 * int(node.attrs["kv_num_heads"]) if node.input(1) is None else 0)
        if query.shape[-1] > MOST_ELEMENTS * parts:
            detail = f"heads of {query.shape[-1] // parts} elements; takes {MOST_ELEMENTS}"
            return Reason(ReasonCode.UNSUPPORTED_SHAPE, detail)
    return None


_INT32: DTypes = frozenset({np.dtype(np.int32)})


@operator(
    "GroupQueryAttention",
    domain="com.microsoft",
    types={
        **dict.fromkeys((0, 1, 2, 7, 8, 10), FLOATS),
        **dict.fromkeys((3, 4), FLOATS | CODES),
        **dict.fromkeys((5, 6), _INT32),
    },
    check=_check,
    outputs=3,
    in_place={1: 3, 2: 4},
)
def group_query_attention(
    k: Kit,
    node: Node,
    query: Operand,
    key: Operand | None,
    value: Operand | None,
    past_key: Operand | None,
    past_value: Operand | None,
    lengths: Operand,
    total: Operand,
    *tables: Operand | None,
) -> tuple[Operand, Operand, Operand]:
    """Attention of new tokens over the valid part of the cache, and the cache with them.

    Where past and present are one buffer, only the new tokens are written. Where the model calls
    their lengths differently, the total length has to be known.
    """
    if past_key is not None and grows(node):
        total = k.constant(k.value(total))
    if reason := refused_caches(node, FLOATS, past_key, past_value):
        raise CompileError(f"Operation '{node.name}' ({node.model_kind}): {reason.detail}.")
    if past_key is not None and past_value is not None:  # one of them may be written in place
        past_value = convert(k, past_value, past_key.dtype)
    key, value = (None if x is None else _alike(k, x, query) for x in (key, value))
    inputs = Inputs(query, key, value, past_key, past_value, lengths, total, *tables[:4])
    if inputs.cosines is not None and inputs.sines is not None:
        inputs = inputs._replace(sines=_alike(k, inputs.sines, inputs.cosines))
    sizes = Sizes.of(node, inputs)
    present = _present(k, sizes, past_key, query), _present(k, sizes, past_value, query)
    y = k.empty((*query.shape[:2], sizes.heads * sizes.group * sizes.size), query.dtype)
    if not y.size:
        return y, present[0], present[1]
    appends = sizes.tokens <= _FEW_TOKENS and past_key is not None
    if not appends:
        _append(k, sizes, inputs, present)
    flags = {"APPENDS": _FEW_TOKENS} if appends else {}
    attend(k, node, sizes, inputs, present, y, **flags)
    return y, present[0], present[1]


def _alike(k: Kit, x: Operand, other: Operand) -> Operand:
    """Numbers in the width of others, with which a kernel reads them."""
    return x if is_half(x.dtype) == is_half(other.dtype) else convert(k, x, other.dtype)


def _present(k: Kit, sizes: Sizes, past: Operand | None, query: Operand) -> Operand:
    """The cache as it is before the tokens come."""
    shape = (sizes.batch, sizes.heads, sizes.places, sizes.row)
    if past is None:
        return k.empty(shape, query.dtype)
    if past.shape != shape:
        return pad_zeros(k, past, (0, 0, 0, 0), (0, 0, sizes.places - past.shape[2], 0))
    present = k.empty(shape, past.dtype)
    steps = strides_of(shape)
    copy_box(k, Box(past, steps), Box(present, steps), shape)
    return present


def _append(k: Kit, sizes: Sizes, inputs: Inputs, present: tuple[Operand, ...]) -> None:
    """Records that the tokens come into the cache."""
    steps, starts = sizes.steps()
    heads = sizes.batch * sizes.tokens * sizes.heads
    flags: dict[str, int | None] = {"NO_PAST": None} if inputs.past_key is None else {}
    launched = k.tuning.flat(heads * sizes.size)
    if sizes.row != sizes.size:  # rows have scales, which all their elements tell
        flags["ITEMS"] = k.tuning.items_for(sizes.size)
        launched = k.tuning.groups(heads, k.tuning.items_for(sizes.size))
    k.launch(
        "cache_append.cl",
        "cache_append",
        launched,
        inputs.key or inputs.query,
        inputs.value or inputs.query,
        *present,
        *tensors(inputs),
        FAULT,
        i32(sizes.batch),
        i32(sizes.heads),
        i32(sizes.tokens),
        i32(sizes.places),
        turns(inputs),
        ints(*steps[1:]),
        ints(*starts[1:]),
        i32(len(k.builder.ops)),
        **token_options(k, k.builder.node, sizes, inputs),
        **flags,
    )


class _Cut(NamedTuple):
    """How attention is cut over work-groups.

    Attributes:
        lanes: Work-items that share a key.
        width: Elements of the key that each of them has.
        keys: Keys that a group works on side by side.
        rows: Queries of a group.
        at_once: Keys that an item asks for before it computes scores.
        splits: Parts of the keys, each of a group of its own.
    """

    lanes: int
    width: int
    keys: int
    rows: int
    at_once: int
    splits: int


def _cut(k: Kit, sizes: Sizes) -> _Cut:
    """Sets of items that share keys, and as many parts of the keys as give all units work."""
    lanes, width, keys = 1, sizes.size, 1
    one = sizes.tokens == 1
    items, scores = (_ITEMS, _SCORES) if one else (_PROMPT_ITEMS, _PROMPT_SCORES)
    if k.tuning.fits(items, 1):
        if sizes.size % _WIDTH == 0:
            lanes, width = sizes.size // _WIDTH, _WIDTH
        keys = items // lanes if lanes > 1 else _FEW_ITEMS
    rows = min(_ROWS, sizes.tokens * sizes.group)
    groups = sizes.batch * sizes.heads * math.ceil(sizes.tokens * sizes.group / rows)
    wanted = math.ceil(2 * k.tuning.limits.compute_units / groups)
    splits = max(1, min(wanted, _SPLITS, sizes.places // _LEAST_PLACES))
    return _Cut(lanes, width, keys, rows, max(1, min(4, scores // rows)), splits)


def attend(
    k: Kit,
    node: Node,
    sizes: Sizes,
    inputs: Inputs,
    present: tuple[Operand, ...],
    y: Operand,
    **flags: int | None,
) -> None:
    """Records the attention over the valid part of the cache.

    Args:
        k: What records.
        node: The operation; its attributes are those of ``GroupQueryAttention``.
        sizes: Its sizes.
        inputs: Its inputs.
        present: Keys and values.
        y: The result, (batch, token, features).
        flags: Options of the kernel beside those that follow from the rest.
    """
    if by_matrix_units(k, node, sizes, inputs, present, y, **flags):
        return
    cut = _cut(k, sizes)
    steps, starts = sizes.steps()
    options = token_options(k, node, sizes, inputs)
    options |= {"LANES": cut.lanes, "WIDTH": cut.width, "KEYS": cut.keys, "ROWS": cut.rows}
    options |= {"SPLITS": cut.splits, "AT_ONCE": cut.at_once}
    if sizes.tokens == 1:
        options["ONE_TOKEN"] = None
    options |= score_options(node, sizes, inputs) | flags
    groups = sizes.batch * sizes.heads * math.ceil(sizes.tokens * sizes.group / cut.rows)
    parts = y.size // sizes.size * cut.splits * (sizes.size + 2)
    partial = y if cut.splits == 1 else k.empty((parts,), np.float32)
    k.launch(
        "cache_attention.cl",
        "cache_attention",
        k.tuning.groups(groups * cut.splits, cut.lanes * cut.keys),
        inputs.query,
        inputs.key or inputs.query,
        inputs.value or inputs.query,
        *present,
        *tensors(inputs),
        inputs.bias or inputs.query,
        y,
        partial,
        FAULT,
        Counters(groups),
        i32(sizes.tokens),
        i32(sizes.places),
        turns(inputs),
        ints(*steps, 0),
        ints(*starts, 0),
        ints(*bias_steps(sizes, inputs.bias)),
        f32(scale_of(node, sizes)),
        i32(len(k.builder.ops)),
        **options,
    )
