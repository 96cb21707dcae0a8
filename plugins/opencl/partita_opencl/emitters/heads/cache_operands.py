"""What attention over a cache reads: its inputs, their sizes, and how kernels are given both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.cache_places import present_places
from partita.lowering.kernel_table import CODES
from partita.tensors.cache_rows import is_quantized, row_bytes
from partita_opencl.launches.emitter_kit import Argument, Kit, i32, is_half

MOST_ELEMENTS = 256
"""Elements of a head."""


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


def token_options(k: Kit, node: Node, sizes: Sizes, inputs: Inputs) -> dict[str, str | int | None]:
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


def tensors(inputs: Inputs) -> tuple[Argument, ...]:
    """The kernels' ``lengths, total, cosines, sines``; another buffer for tables that are not."""
    unused = inputs.query
    return inputs.lengths, inputs.total, inputs.cosines or unused, inputs.sines or unused


def turns(inputs: Inputs) -> Any:
    """Positions that there are angles for."""
    return i32(0 if inputs.cosines is None else inputs.cosines.shape[0])


def bias_steps(sizes: Sizes, bias: Operand | None) -> tuple[int, int, int, int]:
    """Elements of the bias from one row, head and token to the next; how many keys it is for."""
    if bias is None:
        return 0, 0, 0, sizes.places
    rows, heads, tokens, keys = bias.shape
    return 0 if rows == 1 else heads * tokens * keys, 0 if heads == 1 else tokens * keys, keys, keys


def score_options(node: Node, sizes: Sizes, inputs: Inputs) -> dict[str, str | int | None]:
    """Macros by which kernels of attention compute and leave out scores."""
    found: dict[str, str | int | None] = {"HEADS": sizes.heads, "GROUP": sizes.group}
    window, softcap = int(node.attrs.get("local_window_size", -1)), node.number("softcap", 0.0)
    if window >= 0:
        found["WINDOW"] = min(window, sizes.places)
    if softcap:
        found["SOFTCAP"] = f"{float(np.float32(softcap))!r}f"
    if not node.attrs.get("causal", 1):
        found["SEES_ALL"] = None
    if inputs.bias is not None:
        found["BIASED"] = None
        if is_half(inputs.bias.dtype):
            found["BIAS_HALF"] = None
    return found


def scale_of(node: Node, sizes: Sizes) -> float:
    """What scores are multiplied by."""
    return node.number("scale", 0.0) or 1.0 / math.sqrt(sizes.size)
