"""Operators that write elements to places that indices name, with bounds checked on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.kernel_table import INT64, refused_choice
from partita_opencl.emitters.elementwise import convert
from partita_opencl.emitters.movement import own_axis
from partita_opencl.emitters.operator_table import FLOATS, INDICES, MOVED, DTypes, operator
from partita_opencl.emitters.selection.indexing import move_by_index, reached, tuple_arguments
from partita_opencl.launches.emitter_kit import Kit, ctype_of, i32, i64, raw_ctype
from partita_opencl.launches.steps import FAULT
from partita_opencl.launches.tensor_moves import copy_box, expand

_JOINS = {"add": "SUM", "mul": "PRODUCT", "min": "MINIMUM", "max": "MAXIMUM"}
"""Macros of ``scatter.cl``."""

_SHORT: DTypes = frozenset(
    np.dtype(t) for t in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32)
)
"""Integers that are joined in 32 bits, the widest of which all devices exchange one for another."""


def _joined_types(node: Node) -> Reason | None:
    reason = refused_choice(node, "reduction", "none", *_JOINS)
    x = node.input(0)
    dtype = None if x is None else x.dtype
    if reason is not None or dtype is None or node.attrs.get("reduction", "none") == "none":
        return reason
    if dtype in FLOATS | _SHORT:
        return None
    detail = f"{dtype} with a reduction; takes floats and integers of up to 32 bits"
    return Reason(ReasonCode.UNSUPPORTED_DTYPE, detail)


_TYPES = {0: MOVED, 1: INDICES, 2: MOVED}


class _Target:
    """A copy of a tensor that elements are written to, in the type in which they are joined.

    Attributes:
        tensor: The copy.
        updates: The elements, in its type.
        options: The kernels' macros.
    """

    def __init__(self, k: Kit, node: Node, x: Operand, updates: Operand) -> None:
        join = _JOINS.get(node.attrs.get("reduction", "none"))
        dtype = x.dtype
        if join is not None:
            kinds = {"f": np.float32, "i": np.int32, "u": np.uint32}
            dtype = np.dtype(kinds[dtype.kind])
        wide = convert(k, x, dtype)
        self.tensor = k.empty(x.shape, dtype)
        steps = strides_of(x.shape)
        copy_box(k, Box(wide, steps), Box(self.tensor, steps), x.shape)
        # Constants of one element are not narrowed where the rest is.
        self.updates = convert(k, updates, dtype)
        raw = {"T": raw_ctype(dtype)}
        self.options: dict[str, Any] = raw if join is None else {"T": ctype_of(dtype), join: None}


@operator("ScatterElements", types=_TYPES, since=11, check=_joined_types)
@operator("Scatter", types=_TYPES, folds=False)  # ONNX's reference has none
def scatter_elements(k: Kit, node: Node, x: Operand, indices: Operand, updates: Operand) -> Operand:
    """A tensor with elements along an axis replaced or joined, by index.

    Other dimensions go side by side.
    """
    axis = own_axis(node, x.ndim)
    target = _Target(k, node, x, updates)
    y = target.tensor
    part = reached(k, y, indices, axis)
    tensors = target.updates, indices, part
    kernel = "scatter_elements"
    move_by_index(k, "scatter.cl", kernel, tensors, x.shape[axis], axis, **target.options)
    if part is not y:
        steps = strides_of(part.shape)
        copy_box(k, Box(part, steps), Box(y, strides_of(y.shape)), part.shape)
    return convert(k, y, x.dtype)


@operator("ScatterND", types=_TYPES, since=11, check=_joined_types)
def scatter_nd(k: Kit, node: Node, x: Operand, indices: Operand, updates: Operand) -> Operand:
    """A tensor with slices at tuples of coordinates replaced or joined."""
    depth = int(indices.shape[-1])
    target = _Target(k, node, x, updates)
    k.launch(
        "scatter.cl",
        "scatter_tuples",
        k.tuning.flat(updates.size),
        target.updates,
        indices,
        target.tensor,
        FAULT,
        i64(updates.size),
        i64(math.prod(x.shape[depth:])),
        *tuple_arguments(x.shape[:depth]),
        i32(len(k.builder.ops)),
        I=ctype_of(indices.dtype),
        DEPTH=depth,
        **target.options,
    )
    return convert(k, target.tensor, x.dtype)


def _mode(node: Node) -> Reason | None:
    return refused_choice(node, "mode", "linear", "circular")


@operator(
    "TensorScatter",
    types={0: MOVED, 1: MOVED, 2: INT64},
    check=_mode,
    since=24,
    in_place={0: 0},
)
def tensor_scatter(
    k: Kit, node: Node, past: Operand, update: Operand, starts: Operand | None = None
) -> Operand:
    """The past with rows replaced; where both are one buffer, only these rows are written."""
    y, steps = k.empty(past.shape, past.dtype), strides_of(past.shape)
    if not past.size:
        return y
    update = convert(k, update, past.dtype)  # of halves, what may be written in place is not
    copy_box(k, Box(past, steps), Box(y, steps), past.shape)
    axis = own_axis(node, past.ndim, -2)
    if starts is None:
        starts = expand(k, k.constant(np.zeros(1, np.int64)), past.shape[:1])
    k.launch(
        "scatter_rows.cl",
        "scatter_rows",
        k.tuning.flat(update.size),
        update,
        starts,
        y,
        FAULT,
        i64(update.size),
        i64(math.prod(past.shape[1:axis])),
        i64(past.shape[axis]),
        i64(update.shape[axis]),
        i64(math.prod(past.shape[axis + 1 :])),
        i32(len(k.builder.ops)),
        T=raw_ctype(past.dtype),
        **({"CIRCULAR": None} if node.attrs.get("mode") == "circular" else {}),
    )
    return y
