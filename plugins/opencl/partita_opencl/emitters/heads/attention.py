"""Scaled dot-product attention of halves, fused, for devices with matrix units."""

from __future__ import annotations

import math
from typing import Any

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError
from partita.lowering import Node, Operand
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita_opencl.emitters.operator_table import operator
from partita_opencl.launches.emitter_kit import Kit, f32, i32, ints
from partita_opencl.passes.nhwc import UNIT

MOST_ELEMENTS = 128
"""Elements of a head."""

_KEYS = 64
"""Keys at a time."""

_ROWS = 16
"""Rows of a warp."""

_MOST_WARPS = 4
"""Warps of a group: with fewer, copies of keys take longer than more groups save."""


def _check(node: Node) -> Reason | None:
    if "heads" in node.attrs:
        return None  # made of a node that was taken
    for name in ("heads_first", "nan_is_zero"):
        if name in node.attrs:
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, name)
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

    With attribute ``heads``, all three inputs are one tensor (batch, row, 3 * heads * elements).
    """
    heads = int(node.attrs.get("heads", 0))
    offsets = (0, 0, 0)
    shapes = [q.shape, key.shape, value.shape]
    if heads:
        batch, rows, width = q.shape
        elements = width // 3 // heads
        offsets = (0, heads * elements, 2 * heads * elements)
        shapes = [(batch, rows, heads, elements)] * 3
        q = key = value = k.view(q, (batch, rows, 3 * heads, elements))
    batch, rows, heads, elements = shapes[0]
    keys = shapes[1][1]
    if shapes[1] != shapes[2] or shapes[1] != (batch, keys, heads, elements):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot attend by shapes {list(q.shape)}, "
            f"{list(key.shape)} and {list(value.shape)}."
        )
    if elements % UNIT or elements > MOST_ELEMENTS:
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) has heads of {elements} elements; "
            f"multiples of {UNIT} up to {MOST_ELEMENTS} are possible."
        )
    out = k.empty(shapes[0], q.dtype)
    if not out.size:
        return out
    warps = settled(evaluated(_warps, rows))
    blocks = batch * heads * -(-rows // (warps * _ROWS))
    on_units = k.tuning.limits.is_nvidia
    sizes = k.tuning.groups(blocks, warps * 32)
    filled = math.ceil(elements / 16) * 16
    # The keys of a short sequence fit at once, with the scores of small heads in registers.
    block = 2 * _KEYS if _KEYS < keys <= 2 * _KEYS and filled <= 64 else _KEYS
    flags = {"MASK": mask is not None, "ONE_BLOCK": keys <= block}
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
        *(_steps(x, at) for x, at in zip((q, key, value), offsets, strict=True)),
        _steps(out, 0),
        _mask_steps(node, mask, (batch, heads, rows, keys)),
        f32(node.attrs["scale"]),
        HD=filled,
        CHUNKS=1 << (filled // UNIT - 1).bit_length(),
        WARPS=warps,
        BLOCK=block,
        **{name: None for name, on in flags.items() if on},
    )
    return out


def _warps(rows: int) -> int:
    return min(_MOST_WARPS, 1 << (math.ceil(rows / _ROWS) - 1).bit_length())


def _steps(x: Operand, offset: int) -> Any:
    """Strides of batch, head and row in (batch, row, head, element), and where elements start."""
    _, rows, heads, elements = x.shape
    return ints(rows * heads * elements, elements, heads * elements, offset)


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
