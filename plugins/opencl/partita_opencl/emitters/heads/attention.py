"""Scaled dot-product attention of halves, fused, for devices with matrix units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.heads_first import heads_first
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita_opencl.emitters.operator_table import operator
from partita_opencl.launches.emitter_kit import Kit, f32, i32, ints
from partita_opencl.passes.attention_places import PLACES, Place
from partita_opencl.passes.nhwc import UNIT

MOST_ELEMENTS = 128
"""Elements of a head."""

_KEYS = 64
"""Keys at a time."""

ROWS = 16
"""Rows of a warp."""

_MOST_WARPS = 4
"""Warps of a group: with fewer, copies of keys take longer than more groups save."""


def _check(node: Node) -> Reason | None:
    if PLACES in node.attrs:
        return None  # made of a node that was taken
    q, v = node.inputs[0], node.inputs[2]
    for value in (q, v):
        size = None if value is None or not value.shape else value.shape[-1]
        if not isinstance(size, int) or size % UNIT or not 0 < size <= MOST_ELEMENTS:
            return Reason(ReasonCode.UNSUPPORTED_SHAPE, f"heads of {size} elements")
    if q is not None and v is not None and q.shape and v.shape and q.shape[-1] != v.shape[-1]:
        return Reason(ReasonCode.UNSUPPORTED_SHAPE, "keys and values of different sizes")
    return None


@operator("Attention", domain="partita", check=_check)
def attention(
    k: Kit, node: Node, q: Operand, key: Operand, value: Operand, mask: Operand | None = None
) -> Operand:
    """``softmax(scale * q @ k.T + mask) @ v``; see ``partita.lowering.fusion.attention``.

    With :data:`PLACES`, queries, keys and values lie within the inputs, which may be one tensor.
    """
    places = _places(node, q, key, value)
    batch, rows, heads, elements = places[0].shape
    keys = places[1].shape[1]
    if places[1].shape != places[2].shape or places[1].shape != (batch, keys, heads, elements):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot attend by shapes "
            f"{', '.join(str(list(x.shape)) for x in places)} of (batch, row, head, element)."
        )
    if elements % UNIT or elements > MOST_ELEMENTS:
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) has heads of {elements} elements; "
            f"multiples of {UNIT} up to {MOST_ELEMENTS} are possible."
        )
    first = heads_first(node).result
    out = k.empty((batch, heads, rows, elements) if first else places[0].shape, q.dtype)
    if not out.size:
        return out
    warps = settled(evaluated(_warps, rows))
    blocks = batch * heads * -(-rows // (warps * ROWS))
    on_units = k.tuning.limits.is_nvidia
    sizes = k.tuning.groups(blocks, warps * 32)
    options = head_options(elements)
    # The keys of a short sequence fit at once, with the scores of small heads in registers.
    block = 2 * _KEYS if _KEYS < keys <= 2 * _KEYS and options["HD"] <= 64 else _KEYS
    cleared = bool(node.attrs.get("nan_is_zero", 0))
    flags = {"MASK": mask is not None, "ONE_BLOCK": keys <= block, "NAN_IS_ZERO": cleared}
    k.launch(
        "attention.cl",
        "attention",
        sizes if on_units else ((batch * heads * rows,), (1,)),
        q,
        key,
        value,
        mask or q,
        out,
        i32(heads),
        i32(rows),
        i32(keys),
        i32(elements),
        *(ints(*place.steps) for place in (*places, _whole(out, first))),
        _mask_steps(node, mask, (batch, heads, rows, keys)),
        f32(node.attrs["scale"]),
        **options,
        WARPS=warps,
        BLOCK=block,
        **{name: None for name, on in flags.items() if on},
    )
    return out


def head_options(elements: int) -> dict[str, int]:
    """Macros of ``attention_tiles.cl`` for heads of so many elements."""
    filled = math.ceil(elements / 16) * 16
    return {"HD": filled, "CHUNKS": 1 << (filled // UNIT - 1).bit_length()}


def _warps(rows: int) -> int:
    return min(_MOST_WARPS, 1 << (math.ceil(rows / ROWS) - 1).bit_length())


def _places(node: Node, *tensors: Operand) -> Sequence[Place]:
    """Where queries, keys and values lie in their tensors."""
    if PLACES in node.attrs:
        found: Sequence[Place] = node.attrs[PLACES]
        return found
    return [_whole(x, first) for x, first in zip(tensors, heads_first(node).inputs, strict=True)]


def _whole(x: Operand, first: bool) -> Place:
    """All of a tensor."""
    batch, rows, heads, elements = x.shape
    if first:
        rows, heads = heads, rows
    row, head = (elements, rows * elements) if first else (heads * elements, elements)
    return Place((batch, rows, heads, elements), (rows * heads * elements, head, row, 0))


def _mask_steps(node: Node, mask: Operand | None, whole: tuple[int, ...]) -> Any:
    """Strides of the mask along batch, head, row and key; 0 along what it repeats."""
    if mask is None:
        return ints(0, 0, 0, 0)
    shape = (1,) * (4 - mask.ndim) + mask.shape
    if any(size not in (1, full) for size, full in zip(shape, whole, strict=True)):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot add a mask of shape "
            f"{list(mask.shape)} to scores of shape {list(whole)}."
        )
    strides = (math.prod(shape[axis + 1 :]) for axis in range(4))
    return ints(*(step if size > 1 else 0 for step, size in zip(strides, shape, strict=True)))
