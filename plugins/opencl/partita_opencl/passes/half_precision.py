"""Computing float32 models in float16: memory holds halves, registers and sums stay float32.

The model's ports keep their types. Its inputs are narrowed and its outputs widened by operations
put into the graph; weights, and whatever else of float32 an operation meets, are narrowed where the
operation is emitted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from partita import Port
from partita.lowering import Array, Graph, Node, Operand, Value
from partita.lowering.kernel_table import Entry
from partita.lowering.nhwc.conversion import DOMAIN
from partita.system.array_conversion import converted
from partita.tensors.layout import MemoryLayout
from partita_opencl.launches.emitter_kit import Kit
from partita_opencl.launches.expressions import BINARY
from partita_opencl.launches.steps import Line
from partita_opencl.launches.work_sizes import Tuning

HALF = np.dtype(np.float16)
_BFLOAT = np.dtype(ml_dtypes.bfloat16)
SINGLE = np.dtype(np.float32)

WIDE = "wide"
"""Attribute of nodes that passes make: positions of inputs that are taken in float32."""

_FLOAT16 = 10
"""ONNX's number of the type."""

_SCALARS = frozenset({*BINARY, "Clip", "Pow", "Sum", "Where"})
"""Operations whose single-element constants stay float32: float16 makes 0 of an epsilon."""

_PACKING = frozenset({"MatMul", "NormalizedMatMul", "LayerNormalization"})
"""Operations that bring constants to the form that matrix units take, or to single rows."""

_MIXED = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "QLinearMatMul"}
    | {"GroupQueryAttention", "RotaryEmbedding", "BlockProducts", "Mixture", "MoE", "QMoE"}
)
"""Operations whose constants may be of another type than the rest: tables of angles, scales."""

_STATISTICS = frozenset({"BatchNormalization"})
"""Operations whose weights the host makes other weights of first."""


def reads_stored(tuning: Tuning, weights: Array) -> bool:
    """Whether products take weights as they are stored, without a copy in float32 on the host.

    Those of float32 widen them on their way to the device. Where bfloat16 is in the place of
    float16, float16 would be taken for that.
    """
    kind = weights.dtype
    return kind == _BFLOAT or (kind == HALF and not tuning.bfloat)


def take_stored(graph: Graph, tuning: Tuning) -> None:
    """Lets products read weights of bfloat16, which :func:`reads_stored` left, as halves."""
    taken: dict[Value, Value] = {}
    for node in graph.all_nodes():
        for place, value in enumerate(node.inputs):
            if value is None or value.const is None or value.const.dtype != _BFLOAT:
                continue
            if node.op_type == "MatMul":
                if value not in taken:
                    taken[value] = Value(value.name, HALF, value.shape)
                    taken[value].const = converted(value.const, tuning.stored_type).view(HALF)
                node.inputs[place] = taken[value]


def compute_in_half(
    graph: Graph,
    half_inputs: Collection[int] = (),
    half_outputs: Collection[int] = (),
    in_place: Mapping[int, int] | None = None,
) -> None:
    """Puts conversions behind the inputs and before the outputs of a graph.

    Args:
        graph: Changed in place.
        half_inputs: Inputs that callers bring as halves.
        half_outputs: Outputs that callers take as halves.
        in_place: By output the input that it can be written over; both stay as they are.
    """
    kept = in_place or {}
    narrowed: dict[Value, Value] = {}
    before = []
    for index, value in enumerate(graph.inputs):
        if value.dtype != SINGLE or index in kept.values():
            continue
        narrowed[value] = Value(value.name, HALF, value.shape)
        if index in half_inputs:
            graph.inputs[index] = narrowed[value]
        else:
            before.append(_conversion("Narrow", value, narrowed[value]))
    for node in graph.nodes:
        node.inputs = [narrowed.get(v, v) if v is not None else None for v in node.inputs]
    after: list[Node] = []
    widened: dict[Value, Value] = {}
    for index, value in enumerate(graph.outputs):
        if index in half_outputs:
            graph.outputs[index] = Value(value.name, HALF, value.shape)
            after.append(_as_half(value, graph.outputs[index]))
        elif index in kept:
            continue
        elif value.producer is not None and (value.dtype is None or value.dtype == SINGLE):
            if value not in widened:
                widened[value] = Value(value.name, value.dtype, value.shape)
                after.append(_conversion("Widen", value, widened[value]))
            graph.outputs[index] = widened[value]
    graph.nodes = [*before, *graph.nodes, *after]


def half_ports(
    graph: Graph, inputs: Sequence[Port], outputs: Sequence[Port], in_place: Mapping[int, int]
) -> dict[Port, Sequence[MemoryLayout]]:
    """The ports of a graph, before :func:`compute_in_half`, that halves could come in and go out.

    What is passed through stays as it is, and so do scalars, which may be numbers of kernels, and
    what is written over an input.
    """
    computed = {v for node in graph.nodes for v in node.outputs if v is not None}
    found: dict[Port, Sequence[MemoryLayout]] = {}
    for port, value in zip((*inputs, *outputs), (*graph.inputs, *graph.outputs), strict=True):
        if port.dtype != SINGLE or not port.shape or not (port.is_input or value in computed):
            continue
        if port.index in (in_place.values() if port.is_input else in_place):
            continue
        found[port] = (MemoryLayout(tuple(range(len(port.shape))), HALF),)
    return found


def _as_half(source: Value, target: Value) -> Node:
    """The value as it is in memory; converted only if an operator left it in float32."""
    return Node(
        "Cast", [source], [target], {"to": _FLOAT16}, version=13, name=target.name, origins=()
    )


def _conversion(op_type: str, source: Value, target: Value) -> Node:
    return Node(op_type, [source], [target], domain="partita", name=target.name, origins=())


CASTS = {"Narrow": "float32 to float16", "Widen": "float16 to float32"}
"""What the conversions at ports do."""


def casts(graph: Graph) -> list[str]:
    """The names, for profiles, of the conversions that a graph got."""
    return [cast_name(node.op_type, node.name) for node in graph.nodes if node.op_type in CASTS]


def cast_name(op_type: str, name: str) -> str:
    """The name of a conversion in profiles."""
    return f"permute {name} ({CASTS[op_type]})"


def narrowed(
    k: Kit, node: Node, entry: Entry, operands: Sequence[Operand | None]
) -> list[Operand | None]:
    """The operands that an emitter gets: those of float32 as float16."""
    return [
        x if x is None or _stays(k, node, entry, position, x) else narrow(k, x)
        for position, x in enumerate(operands)
    ]


def _stays(k: Kit, node: Node, entry: Entry, position: int, x: Operand) -> bool:
    if x.dtype != SINGLE or position in entry.values or position in node.attrs.get(WIDE, ()):
        return True
    if node.op_type in ("Narrow", "Widen"):
        return True
    if x.const is None:  # reorders take either type, and so do operators that keep a cache
        return node.domain == DOMAIN or position in entry.in_place.values()
    if node.domain == DOMAIN or (k.tuning.matrix_units and node.op_type in _PACKING):
        return True  # they pack constants themselves
    if node.op_type in _STATISTICS or node.op_type in _MIXED:
        return True
    return x.size == 1 and node.op_type in _SCALARS


def narrow(k: Kit, x: Operand) -> Operand:
    """The tensor as float16; a constant stays one, and finite."""
    if x.const is not None:
        return k.builder.prepack(x, "half", lambda array: _finite_halves(k, array))
    return convert(k, x, HALF)


def _finite_halves(k: Kit, array: Array) -> Array:
    """Numbers as halves; what is beyond them, as a mask's least float32, is the largest half."""
    halves = k.halves(array)
    infinite = np.isinf(k.numbers(halves))
    if infinite.any():
        _, most = k.tuning.half_range
        halves = k.halves(np.where(np.isinf(array), array, np.clip(array, -most, most)))
    return halves


def convert(k: Kit, x: Operand, dtype: np.dtype[Any]) -> Operand:
    """The tensor in another floating-point type."""
    y = k.empty(x.shape, dtype)
    k.chain(y, [Line("{0}", (0,), "float")], x)
    return y
