"""Operators whose elements are chosen by their own place: OneHot and Trilu."""

from __future__ import annotations

import math

import numpy as np

from partita.lowering import Node, Operand
from partita.lowering.kernel_table import INT64
from partita.lowering.shapes.symbolic_size import integer
from partita_opencl.emitters.movement import own_axis
from partita_opencl.emitters.operator_table import MOVED, NUMBERS, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, i64, is_half, raw_ctype


@operator("OneHot", types={0: NUMBERS, 1: NUMBERS, 2: MOVED}, values=(1,), since=9)
def one_hot(k: Kit, node: Node, indices: Operand, depth: Operand, values: Operand) -> Operand:
    """A new axis that is "on" at each index and "off" elsewhere; all off for indices beyond."""
    size = max(0, integer(k.value(depth).reshape(-1)[0]))
    axis = own_axis(node, indices.ndim + 1, -1)
    y = k.empty((*indices.shape[:axis], size, *indices.shape[axis:]), values.dtype)
    k.launch(
        "masks.cl",
        "one_hot",
        k.tuning.flat(y.size),
        indices,
        values,
        y,
        i64(y.size),
        i64(size),
        i64(math.prod(indices.shape[axis:])),
        T=raw_ctype(values.dtype),
        I=ctype_of(indices.dtype),
        **({"INDEX_HALF": None} if is_half(indices.dtype) else {}),
        **({"FLOATS": None} if indices.dtype.kind == "f" else {}),
    )
    return y


@operator("Trilu", types={0: MOVED, 1: INT64}, since=14)
def trilu(k: Kit, node: Node, x: Operand, diagonal: Operand | None = None) -> Operand:
    """The upper or lower triangle of matrices, from a diagonal on; zeros elsewhere."""
    if diagonal is None:
        diagonal = k.constant(np.zeros(1, np.int64))
    y = k.empty(x.shape, x.dtype)
    k.launch(
        "masks.cl",
        "triangle",
        k.tuning.flat(y.size),
        x,
        diagonal,
        y,
        i64(y.size),
        i64(x.shape[-2]),
        i64(x.shape[-1]),
        T=raw_ctype(x.dtype),
        I="long",
        **({"UPPER": None} if node.attrs.get("upper", 1) else {}),
    )
    return y
