"""Cumulative sums and products along an axis."""

from __future__ import annotations

import math
from typing import Any

from partita.lowering import Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita.lowering.shapes.symbolic_size import integer
from partita_opencl.emitters.operator_table import INDICES, NUMBERS, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, i64


@operator("CumSum", types={0: NUMBERS, 1: INDICES}, values=(1,), since=11)
@operator("CumProd", types={0: NUMBERS, 1: INDICES}, values=(1,), since=26)
def scan(k: Kit, node: Node, x: Operand, axis: Operand) -> Operand:
    """Cumulative sum or product, with or without the element itself, from either end."""
    along = axis_of(node, integer(k.value(axis).reshape(-1)[0]), x.ndim)
    y = k.empty(x.shape, x.dtype)
    if not x.size:
        return y
    depth, inner = x.shape[along], math.prod(x.shape[along + 1 :])
    outer = math.prod(x.shape[:along])
    is_float = x.dtype.kind == "f"
    # Signed numbers that overflow mean nothing to compilers: they are joined as unsigned ones.
    joined = "float" if is_float else "ulong" if x.dtype.itemsize == 8 else "uint"
    items = k.tuning.items_for(depth)
    options: dict[str, Any] = {"T": ctype_of(x.dtype), "JOINED": joined, "ITEMS": items}
    flags = {
        "PRODUCT": node.op_type == "CumProd",
        "EXCLUSIVE": node.attrs.get("exclusive", 0),
        "REVERSE": node.attrs.get("reverse", 0),
    }
    options |= {name: None for name, on in flags.items() if on}
    if inner == 1:
        sizes = k.tuning.groups(outer, items)
        k.launch("scan.cl", "scan_rows", sizes, x, y, i64(depth), **options)
    else:
        sizes = k.tuning.flat(outer * inner)
        arguments = x, y, i64(outer * inner), i64(depth), i64(inner)
        k.launch("scan.cl", "scan_columns", sizes, *arguments, **options)
    return y
