"""Operators that select by index, with bounds checked on the device."""

from __future__ import annotations

import math

from partita.lowering import Node, Operand
from partita_opencl.emitters.movement import axis_of, copy_box, row_major
from partita_opencl.emitters.operator_table import INDICES, MOVED, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, i32, i64, raw_ctype
from partita_opencl.launches.steps import FAULT


@operator("Gather", types={0: MOVED, 1: INDICES})
def gather(k: Kit, node: Node, x: Operand, indices: Operand) -> Operand:
    """Slices along an axis by index."""
    axis = axis_of(node, x.ndim)
    y = k.empty((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    k.launch(
        "gather.cl",
        "gather",
        k.tuning.flat(y.size),
        x,
        indices,
        y,
        FAULT,
        i64(y.size),
        i64(x.shape[axis]),
        i64(math.prod(x.shape[axis + 1 :])),
        i64(indices.size),
        i32(len(k.builder.ops)),
        T=raw_ctype(x.dtype),
        I=ctype_of(indices.dtype),
    )
    return y


@operator("GatherElements", types={0: MOVED, 1: INDICES}, since=11)
def gather_elements(k: Kit, node: Node, x: Operand, indices: Operand) -> Operand:
    """Elements along an axis by index; other dimensions go side by side."""
    axis = axis_of(node, x.ndim)
    if x.shape[:axis] != indices.shape[:axis] or x.shape[axis + 1 :] != indices.shape[axis + 1 :]:
        x = _cut(k, x, indices, axis)
    y = k.empty(indices.shape, x.dtype)
    k.launch(
        "gather.cl",
        "gather_elements",
        k.tuning.flat(y.size),
        x,
        indices,
        y,
        FAULT,
        i64(y.size),
        i64(x.shape[axis]),
        i64(math.prod(x.shape[axis + 1 :])),
        i64(indices.shape[axis]),
        i32(len(k.builder.ops)),
        T=raw_ctype(x.dtype),
        I=ctype_of(indices.dtype),
    )
    return y


def _cut(k: Kit, x: Operand, indices: Operand, axis: int) -> Operand:
    """The part of x that indices of a smaller shape can reach."""
    shape = list(indices.shape)
    shape[axis] = x.shape[axis]
    y = k.empty(shape, x.dtype)
    copy_box(k, x, y, shape, row_major(x.shape), row_major(shape))
    return y
