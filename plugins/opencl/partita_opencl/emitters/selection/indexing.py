"""Operators that select by index, with bounds checked on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.kernel_table import INT64
from partita_opencl.emitters.movement import own_axis
from partita_opencl.emitters.operator_table import FLOATS, INDICES, MOVED, DTypes, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, i32, i64, longs, raw_ctype
from partita_opencl.launches.steps import FAULT
from partita_opencl.launches.tensor_moves import copy_box

_DIMS = 8
"""Coordinates of a tuple that kernels take."""


@operator("Gather", types={0: MOVED, 1: INDICES})
def gather(k: Kit, node: Node, x: Operand, indices: Operand) -> Operand:
    """Slices along an axis by index."""
    return rows_of(k, x, indices, own_axis(node, x.ndim))


def rows_of(k: Kit, x: Operand, indices: Operand, axis: int = 0) -> Operand:
    """Slices along an axis by index; an index that names none is a fault.

    Args:
        k: Records it.
        x: The tensor.
        indices: Whole numbers; those below 0 count from the end.
        axis: The axis, counted from 0.
    """
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
    axis = own_axis(node, x.ndim)
    y = k.empty(indices.shape, x.dtype)
    tensors = reached(k, x, indices, axis), indices, y
    options = {"T": raw_ctype(x.dtype)}
    move_by_index(k, "gather.cl", "gather_elements", tensors, x.shape[axis], axis, **options)
    return y


def reached(k: Kit, x: Operand, indices: Operand, axis: int) -> Operand:
    """What indices can reach of x: all of it, or less of the dimensions beside the axis."""
    if x.shape[:axis] == indices.shape[:axis] and x.shape[axis + 1 :] == indices.shape[axis + 1 :]:
        return x
    shape = list(indices.shape)
    shape[axis] = x.shape[axis]
    y = k.empty(shape, x.dtype)
    copy_box(k, Box(x, strides_of(x.shape)), Box(y, strides_of(shape)), shape)
    return y


def move_by_index(
    k: Kit, file: str, kernel: str, tensors: Sequence[Operand], size: int, axis: int, **options: Any
) -> None:
    """Records a kernel that moves an element for each index.

    Args:
        k: Records it.
        file: The kernel's file.
        kernel: The kernel.
        tensors: What it reads, the indices, what it writes.
        size: Of the axis that the indices count along.
        axis: The axis.
        options: Macros besides the types.
    """
    x, indices, y = tensors
    k.launch(
        file,
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
        I=ctype_of(indices.dtype),
        **options,
    )


@operator("GatherND", types={0: MOVED, 1: INDICES}, since=11)
def gather_nd(k: Kit, node: Node, x: Operand, indices: Operand) -> Operand:
    """Slices at tuples of coordinates, within each of the leading batch dimensions."""
    batch = int(node.attrs.get("batch_dims", 0))
    depth = int(indices.shape[-1])
    inner = x.shape[batch + depth :]
    y = k.empty((*indices.shape[:-1], *inner), x.dtype)
    limits = x.shape[batch : batch + depth]
    k.launch(
        "gather.cl",
        "gather_tuples",
        k.tuning.flat(y.size),
        x,
        indices,
        y,
        FAULT,
        i64(y.size),
        i64(math.prod(inner)),
        *tuple_arguments(limits),
        i64(math.prod(indices.shape[batch:-1])),
        i64(math.prod(limits)),
        i32(len(k.builder.ops)),
        T=raw_ctype(x.dtype),
        I=ctype_of(indices.dtype),
        DEPTH=depth,
    )
    return y


def tuple_arguments(limits: Sequence[int]) -> tuple[Any, Any]:
    """The kernels' ``limits`` and ``steps`` for tuples of coordinates in a box of these sizes."""
    rest = (1,) * (_DIMS - len(limits))
    return longs(*limits, *rest), longs(*strides_of(limits), *rest)


@operator("ReverseSequence", types={0: MOVED, 1: INT64}, since=10)
def reverse_sequence(k: Kit, node: Node, x: Operand, lengths: Operand) -> Operand:
    """Each sequence of the batch backwards, as far as its length says."""
    y = k.empty(x.shape, x.dtype)
    time_first = int(node.attrs.get("time_axis", 0)) == 0
    k.launch(
        "gather.cl",
        "reverse_sequences",
        k.tuning.flat(y.size),
        x,
        lengths,
        y,
        FAULT,
        i64(y.size),
        i64(x.shape[0 if time_first else 1]),
        i64(x.shape[1]),
        i64(math.prod(x.shape[2:])),
        i32(len(k.builder.ops)),
        T=raw_ctype(x.dtype),
        I="long",
        **({"TIME_FIRST": None} if time_first else {}),
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
