"""GroupQueryAttention: attention of new tokens over a cache of keys and values, which they join."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.cache_places import grows, present_places
from partita.lowering.kernel_table import (
    CODES,
    refused_attribute,
    refused_caches,
    refused_input,
)
from partita.tensors.cache_rows import is_quantized, row_bytes
from partita_opencl.emitters.elementwise import convert
from partita_opencl.emitters.operator_table import FLOATS, DTypes, operator
from partita_opencl.launches.emitter_kit import Argument, Kit, f32, i32, ints, is_half
from partita_opencl.launches.steps import FAULT, Counters
from partita_opencl.launches.tensor_moves import copy_box, pad_zeros

MOST_ELEMENTS = 256
"""Elements of a head."""

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


class Inputs(NamedTuple):
    """Inputs of GroupQueryAttention that are taken."""

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


@dataclass(frozen=True)
class Sizes:
    """Sizes of one operation.

    Attributes:
        batch: Rows of the batch.
        heads: Heads of keys and values.
        group: Heads of queries that share one of these.
        tokens: New tokens of a row.
        size: Elements of a head.
        places: Places of the cache.
        rotated: Elements of a head that are turned.
        packed: Whether queries, keys and values lie in one tensor.
        row: Elements that the cache has for a head of one token.
    """

    batch: int
    heads: int
    group: int
    tokens: int
    size: int
    places: int
    rotated: int
    packed: bool
    row: int

    @classmethod
    def of(cls, node: Node, inputs: Inputs) -> Sizes:
        """From attributes and shapes.

        Raises:
            OperandError: They do not fit each other.
        """
        all_heads, heads = int(node.attrs["num_heads"]), int(node.attrs["kv_num_heads"])
        query, past = inputs.query, inputs.past_key
        wrong = heads < 1 or all_heads < heads or all_heads % heads != 0 or query.ndim != 3
        if wrong:
            _refuse(node, f"{all_heads} heads over {heads} heads of keys", query)
        batch, tokens, width = query.shape
        size, rest = divmod(width, all_heads + (2 * heads if inputs.key is None else 0))
        places = tokens
        if past is not None and past.ndim == 4:
            places, total = past.shape[2], inputs.total.const
            if total is not None:
                places = present_places(places, tokens, int(total.flat[0]))
        turned = 0
        if node.attrs.get("do_rotary", 0):
            if inputs.cosines is None or inputs.sines is None or inputs.cosines.ndim != 2:
                _refuse(node, "no tables of cosines and sines", query)
            turned = 2 * inputs.cosines.shape[1]
        row = row_bytes(size) if is_quantized(node.attrs) else size
        packed = inputs.key is None
        sizes = cls(batch, heads, all_heads // heads, tokens, size, places, turned, packed, row)
        if rest or not 0 < size <= MOST_ELEMENTS or turned > size or places >= 2**31:
            _refuse(node, f"heads of {width} / {all_heads} elements", query)
        sizes._require_shapes(node, inputs)
        return sizes

    def _require_shapes(self, node: Node, inputs: Inputs) -> None:
        """Raises if an input has another shape than the others ask for."""
        new = (self.batch, self.tokens, self.heads * self.size)
        for x in (inputs.key, inputs.value):
            if (x is None) != self.packed or (x is not None and x.shape != new):
                _refuse(node, f"keys and values for {list(new)}", x or inputs.query)
        for x in (inputs.past_key, inputs.past_value):
            if (x is None) != (inputs.past_key is None):
                _refuse(node, "past keys without values", inputs.query)
            if x is not None and (
                x.ndim != 4
                or (x.shape[0], x.shape[1], x.shape[3]) != (self.batch, self.heads, self.row)
                or x.shape != (inputs.past_key or x).shape
            ):
                _refuse(node, f"a cache for {list(new)}", x)
        if inputs.bias is not None and inputs.bias.size >= 2**31:
            _refuse(node, "a bias of too many elements", inputs.bias)
        if inputs.lengths.size != self.batch or inputs.total.size != 1:
            _refuse(node, f"lengths for {self.batch} rows", inputs.lengths)
        if (
            self.rotated
            and (inputs.cosines or inputs.query).shape != (inputs.sines or inputs.query).shape
        ):
            _refuse(node, "cosines and sines", inputs.sines or inputs.query)

    def steps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Elements from one token to the next of queries, keys and values; their first elements."""
        query, key = self.group * self.heads * self.size, self.heads * self.size
        if not self.packed:
            return (query, key, key), (0, 0, 0)
        return (query + 2 * key,) * 3, (0, query, query + key)


def _refuse(node: Node, what: str, x: Operand) -> NoReturn:
    raise OperandError(
        f"Operation '{node.name}' ({node.model_kind}) has {what}: an input of shape "
        f"{list(x.shape)} and type {x.dtype} does not fit."
    )


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


def _options(k: Kit, node: Node, sizes: Sizes, inputs: Inputs) -> dict[str, str | int | None]:
    """Macros of ``cache_tokens.cl``."""
    cache, tables = inputs.past_key or inputs.query, inputs.cosines or inputs.query
    flags = {
        "TOKEN_HALF": is_half(inputs.query.dtype),
        "CACHE_HALF": is_half(cache.dtype),
        "CACHE_CODES": cache.dtype in CODES,
        "TABLE_HALF": is_half(tables.dtype),
        "INTERLEAVED": bool(node.attrs.get("rotary_interleaved", 0)),
        "NVIDIA": k.tuning.limits.is_nvidia,
    }
    found: dict[str, str | int | None] = {"SIZE": sizes.size, "ROTATED": sizes.rotated}
    return found | {name: None for name, on in flags.items() if on}


def _tensors(inputs: Inputs) -> tuple[Argument, ...]:
    """The kernels' ``lengths, total, cosines, sines``; another buffer for tables that are not."""
    unused = inputs.query
    return inputs.lengths, inputs.total, inputs.cosines or unused, inputs.sines or unused


def _turns(inputs: Inputs) -> Any:
    """Positions that there are angles for."""
    return i32(0 if inputs.cosines is None else inputs.cosines.shape[0])


def _bias_steps(sizes: Sizes, bias: Operand | None) -> tuple[int, int, int, int]:
    """Elements of the bias from one row, head and token to the next; how many keys it is for."""
    if bias is None:
        return 0, 0, 0, sizes.places
    rows, heads, tokens, keys = bias.shape
    return 0 if rows == 1 else heads * tokens * keys, 0 if heads == 1 else tokens * keys, keys, keys


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
        *_tensors(inputs),
        FAULT,
        i32(sizes.batch),
        i32(sizes.heads),
        i32(sizes.tokens),
        i32(sizes.places),
        _turns(inputs),
        ints(*steps[1:]),
        ints(*starts[1:]),
        i32(len(k.builder.ops)),
        **_options(k, k.builder.node, sizes, inputs),
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
    cut = _cut(k, sizes)
    steps, starts = sizes.steps()
    options = _options(k, node, sizes, inputs)
    options |= {"LANES": cut.lanes, "WIDTH": cut.width, "KEYS": cut.keys, "ROWS": cut.rows}
    options |= {"SPLITS": cut.splits, "AT_ONCE": cut.at_once}
    options |= {"HEADS": sizes.heads, "GROUP": sizes.group}
    if sizes.tokens == 1:
        options["ONE_TOKEN"] = None
    window, softcap = int(node.attrs.get("local_window_size", -1)), node.number("softcap", 0.0)
    if window >= 0:
        options["WINDOW"] = min(window, sizes.places)
    if softcap:
        options["SOFTCAP"] = f"{float(np.float32(softcap))!r}f"
    options |= flags
    if not node.attrs.get("causal", 1):
        options["SEES_ALL"] = None
    if inputs.bias is not None:
        options["BIASED"] = None
        if is_half(inputs.bias.dtype):
            options["BIAS_HALF"] = None
    groups = sizes.batch * sizes.heads * math.ceil(sizes.tokens * sizes.group / cut.rows)
    parts = y.size // sizes.size * cut.splits * (sizes.size + 2)
    partial = y if cut.splits == 1 else k.empty((parts,), np.float32)
    scale = node.number("scale", 0.0) or 1.0 / math.sqrt(sizes.size)
    k.launch(
        "cache_attention.cl",
        "cache_attention",
        k.tuning.groups(groups * cut.splits, cut.lanes * cut.keys),
        inputs.query,
        inputs.key or inputs.query,
        inputs.value or inputs.query,
        *present,
        *_tensors(inputs),
        inputs.bias or inputs.query,
        y,
        partial,
        FAULT,
        Counters(groups),
        i32(sizes.tokens),
        i32(sizes.places),
        _turns(inputs),
        ints(*steps, 0),
        ints(*starts, 0),
        ints(*_bias_steps(sizes, inputs.bias)),
        f32(scale),
        i32(len(k.builder.ops)),
        **options,
    )
