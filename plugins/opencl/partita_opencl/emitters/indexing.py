"""Operators that select by index, with bounds checked on the device."""

from __future__ import annotations

import math

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.kernel_table import INT64, refused_choice
from partita_opencl.emitters.elementwise import convert
from partita_opencl.emitters.movement import axis_of, copy_box, expand
from partita_opencl.emitters.operator_table import FLOATS, INDICES, MOVED, DTypes, operator
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
    y = k.empty(indices.shape, x.dtype)
    _by_index(k, "gather_elements", _reached(k, x, indices, axis), indices, y, x.shape[axis], axis)
    return y


@operator(
    "ScatterElements",
    types={0: MOVED, 1: INDICES},
    since=11,
    check=lambda node: refused_choice(node, "reduction", "none"),
)
def scatter_elements(k: Kit, node: Node, x: Operand, indices: Operand, updates: Operand) -> Operand:
    """A tensor with elements along an axis replaced, by index; other dimensions go side by side."""
    axis = axis_of(node, x.ndim)
    if indices.shape != updates.shape:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has indices of shape "
            f"{list(indices.shape)} and updates of shape {list(updates.shape)}."
        )
    if updates.dtype != x.dtype:
        updates = convert(k, updates, x.dtype)  # of halves, constants of one element are not
    y = k.empty(x.shape, x.dtype)
    copy_box(k, Box(x, strides_of(x.shape)), Box(y, strides_of(x.shape)), x.shape)
    target = _reached(k, y, indices, axis)
    _by_index(k, "scatter_elements", updates, indices, target, x.shape[axis], axis)
    if target is not y:
        steps = strides_of(target.shape)
        copy_box(k, Box(target, steps), Box(y, strides_of(y.shape)), target.shape)
    return y


def _reached(k: Kit, x: Operand, indices: Operand, axis: int) -> Operand:
    """What indices can reach of x: all of it, or less of the dimensions beside the axis."""
    if x.shape[:axis] == indices.shape[:axis] and x.shape[axis + 1 :] == indices.shape[axis + 1 :]:
        return x
    shape = list(indices.shape)
    shape[axis] = x.shape[axis]
    y = k.empty(shape, x.dtype)
    copy_box(k, Box(x, strides_of(x.shape)), Box(y, strides_of(shape)), shape)
    return y


def _by_index(
    k: Kit, kernel: str, x: Operand, indices: Operand, y: Operand, size: int, axis: int
) -> None:
    """Records a kernel that moves an element for each index; size: of the axis that it counts."""
    k.launch(
        "gather.cl",
        kernel,
        k.tuning.flat(indices.size),
        x,
        indices,
        y,
        FAULT,
        i64(indices.size),
        i64(size),
        i64(math.prod(indices.shape[axis + 1 :])),
        i64(indices.shape[axis]),
        i32(len(k.builder.ops)),
        T=raw_ctype(x.dtype),
        I=ctype_of(indices.dtype),
    )


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
    axis = axis_of(node, past.ndim, -2)
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


_BYTES: DTypes = frozenset({np.dtype(np.uint8)})


def _blocks_along_rows(node: Node) -> Reason | None:
    table = node.input(0)
    rank = None if table is None or table.shape is None else len(table.shape)
    bits, block = node.attrs.get("bits", 4), node.attrs.get("block_size", 128)
    along = node.attrs.get("quantize_axis", 1)
    detail = ""
    if bits not in (4, 8):
        detail = f"bits {bits}; takes 4 and 8"
    elif not 16 <= block < 2**31:
        detail = f"block_size {block}; takes those from 16"
    elif node.attrs.get("gather_axis", 0) not in (0, None if rank is None else -rank):
        detail = f"gather_axis {node.attrs['gather_axis']}; takes the first"
    elif along != -1 and (rank is None or along != rank - 1):
        detail = f"quantize_axis {along}; takes the last"
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, detail) if detail else None


@operator(
    "GatherBlockQuantized",
    domain="com.microsoft",
    types={0: _BYTES, 1: INDICES, 2: FLOATS, 3: _BYTES},
    check=_blocks_along_rows,
)
def gather_blocks(
    k: Kit,
    node: Node,
    table: Operand,
    indices: Operand,
    scales: Operand,
    zeros: Operand | None = None,
) -> Operand:
    """Rows of a table that is written in blocks of 4 or 8 bits, as floats."""
    bits, block = int(node.attrs.get("bits", 4)), int(node.attrs.get("block_size", 128))
    line = (table.shape or (0,))[-1] * 8 // bits
    blocks = math.ceil(line / block)
    of_zeros = math.ceil(blocks * bits / 8)
    if (
        table.ndim < 2
        or scales.shape != (*table.shape[:-1], blocks)
        or (zeros is not None and zeros.shape != (*table.shape[:-1], of_zeros))
    ):
        shapes = [list(x.shape) for x in (table, scales, zeros) if x is not None]
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has a table, scales and zero points of "
            f"shapes {shapes}, which do not fit blocks of {block} elements of {bits} bits."
        )
    y = k.empty((*indices.shape, *table.shape[1:-1], line), scales.dtype)
    flags = {} if zeros is None else {"ZEROS": None}
    k.launch(
        "gather_blocks.cl",
        "gather_blocks",
        k.tuning.flat(y.size),
        table,
        indices,
        scales,
        zeros or table,
        y,
        i64(y.size),
        i64(table.shape[0]),
        i64(math.prod(table.shape[1:-1])),
        i32(line),
        i32(block),
        i32(blocks),
        i32(1 << (bits - 1)),
        I=ctype_of(indices.dtype),
        BITS=bits,
        **flags,
    )
    return y
