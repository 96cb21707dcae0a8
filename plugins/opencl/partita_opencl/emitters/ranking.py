"""The largest or smallest elements along an axis, in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.kernel_table import INT64
from partita.lowering.shapes.symbolic_size import integer
from partita_opencl.emitters.movement import own_axis
from partita_opencl.emitters.operator_table import FLOATS, DTypes, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, i32
from partita_opencl.launches.tensor_moves import transpose

_TYPES: DTypes = FLOATS | INT64 | frozenset({np.dtype(np.int32)})


@operator("TopK", types={0: _TYPES, 1: INT64}, values=(1,), since=10, outputs=2)
def top_k(k: Kit, node: Node, x: Operand, count: Operand) -> tuple[Operand, Operand]:
    """The k largest or smallest elements along an axis, and where they are; the first of equals."""
    axis = own_axis(node, x.ndim, -1)
    number = integer(k.value(count).reshape(-1)[0])
    if not 0 <= number <= x.shape[axis]:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) is to find {number} of {x.shape[axis]} "
            "elements."
        )
    order = [*(i for i in range(x.ndim) if i != axis), axis]
    back = [order.index(i) for i in range(x.ndim)]
    smallest = not node.attrs.get("largest", 1)
    values, places = largest(k, transpose(k, x, order), number, smallest=smallest)
    return transpose(k, values, back), transpose(k, places, back)


def largest(k: Kit, x: Operand, count: int, *, smallest: bool = False) -> tuple[Operand, Operand]:
    """The ``count`` largest elements along the last axis, in order, and their places, int64.

    Takes a pass over the axis for each of them.

    Args:
        k: The kit.
        x: Numbers that kernels order.
        count: How many, at most as many as there are.
        smallest: Whether to look for the smallest instead.
    """
    shape = (*x.shape[:-1], count)
    values, places = k.empty(shape, x.dtype), k.empty(shape, np.int64)
    if not values.size:
        return values, places
    depth = x.shape[-1]
    options: dict[str, Any] = {"T": ctype_of(x.dtype), "ITEMS": k.tuning.items_for(depth)}
    flags = {"FLOATS": x.dtype.kind == "f", "SMALLEST": smallest}
    sizes = k.tuning.groups(x.size // depth, options["ITEMS"])
    options |= {name: None for name, on in flags.items() if on}
    k.launch("top_k.cl", "top_k", sizes, x, values, places, i32(depth), i32(count), **options)
    return values, places
