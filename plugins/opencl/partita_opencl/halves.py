"""Computing float32 models in float16: memory holds halves, registers and sums stay float32.

The model's ports keep their types. Its inputs are narrowed and its outputs widened by operations
put into the graph; weights, and whatever else of float32 an operation meets, are narrowed where the
operation is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering import Array, Graph, Node, Operand, Value
from partita.lowering.table import Entry
from partita_opencl.expressions import BINARY
from partita_opencl.kit import Kit
from partita_opencl.steps import Line

HALF = np.dtype(np.float16)
SINGLE = np.dtype(np.float32)

_SCALARS = frozenset({*BINARY, "Clip", "Pow", "Sum", "Where"})
"""Operations whose single-element constants stay float32: float16 makes 0 of an epsilon."""

_STATISTICS = frozenset({"BatchNormalization"})
"""Operations whose weights the host makes other weights of first."""


def compute_in_half(graph: Graph) -> None:
    """Puts conversions behind the inputs and before the outputs of a graph."""
    narrowed: dict[Value, Value] = {}
    for value in graph.inputs:
        if value.dtype == SINGLE:
            narrowed[value] = Value(value.name, HALF, value.shape)
    for node in graph.nodes:
        node.inputs = [narrowed.get(v, v) if v is not None else None for v in node.inputs]
    before = [_conversion("Narrow", old, new) for old, new in narrowed.items()]
    after: list[Node] = []
    widened: dict[Value, Value] = {}
    for value in graph.outputs:
        if value.producer is not None and value.dtype in (SINGLE, None) and value not in widened:
            widened[value] = Value(value.name, value.dtype, value.shape)
            after.append(_conversion("Widen", value, widened[value]))
    graph.outputs = [widened.get(value, value) for value in graph.outputs]
    graph.nodes = [*before, *graph.nodes, *after]


def _conversion(op_type: str, source: Value, target: Value) -> Node:
    return Node(op_type, [source], [target], domain="partita", name=source.name, origins=())


def narrowed(
    k: Kit, node: Node, entry: Entry, operands: Sequence[Operand | None]
) -> list[Operand | None]:
    """The operands that an emitter gets: those of float32 as float16."""
    return [
        x if x is None or _stays(node, entry, position, x) else narrow(k, x)
        for position, x in enumerate(operands)
    ]


def _stays(node: Node, entry: Entry, position: int, x: Operand) -> bool:
    if x.dtype != SINGLE or position in entry.values or node.op_type in ("Narrow", "Widen"):
        return True
    if x.const is None:
        return False
    return (x.size == 1 and node.op_type in _SCALARS) or node.op_type in _STATISTICS


def narrow(k: Kit, x: Operand) -> Operand:
    """The tensor as float16; a constant stays one."""
    if x.const is not None:
        return k.builder.prepack(x, "half", _to_half)
    return convert(k, x, HALF)


def convert(k: Kit, x: Operand, dtype: np.dtype[Any]) -> Operand:
    """The tensor in another floating-point type."""
    y = k.empty(x.shape, dtype)
    k.chain(y, [Line("{0}", (0,), "float")], x)
    return y


def _to_half(array: Array) -> Array:
    # What is larger than the largest half becomes infinite, as hardware converts.
    with np.errstate(over="ignore"):
        return array.astype(HALF)
