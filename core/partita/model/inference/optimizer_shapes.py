"""Shapes behind operators that onnxruntime's optimizer and its quantization make of ONNX's own.

As in :mod:`partita.model.inference.contrib_shapes`, each is replaced for inference alone, mostly by
the operator that it was made of. Where only the element type is certain, a Reshape whose sizes
nobody knows tells that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from partita.model.port import Dim
from partita.model.value_uses import attributes

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

_FLOAT, _UINT8, _INT64, _BOOL = 1, 2, 7, 9
"""Element types, by their numbers in protobufs."""

_INT = 2
"""The type of an attribute that is an integer, likewise."""

_CLAMPED = frozenset({"activation", "activation_params"})
_BENT = frozenset({"activation", *(f"activation_{name}" for name in ("alpha", "beta", "gamma"))})


class SourceWriter(Protocol):
    """Adds inputs of a model that tell types and sizes."""

    def source(self, name: str, element_type: int, dims: Sequence[Dim]) -> str:
        """Adds one; its name, which is not taken."""
        ...


StandIn = Callable[[SourceWriter, "onnx.GraphProto", "ir.Node"], None]


def name_at(values: Sequence[ir.Value | None], place: int) -> str:
    """The name of an input or result; empty if it is left out."""
    value = values[place] if place < len(values) else None
    return "" if value is None else str(value.name or "")


def _like(op_type: str, places: Iterable[int], without: Collection[str] = ()) -> StandIn:
    """One of ONNX that reads some of the inputs, by all attributes but some."""

    def stand_in(_writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
        _add(graph, op_type, node, [name_at(node.inputs, place) for place in places], without)

    return stand_in


def _add(
    graph: onnx.GraphProto,
    op_type: str,
    node: ir.Node,
    reads: Sequence[str],
    without: Collection[str] = (),
) -> None:
    from onnx_ir import serde

    made = name_at(node.outputs, 0)
    if not made or not reads or not reads[0]:
        return
    added = graph.node.add(op_type=op_type, input=reads, output=[made])
    for attribute in attributes(node):
        if attribute.name not in without:
            serde.serialize_attribute_into(added.attribute.add(), attribute)


def _typed(writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """The first result has the element type of the first input."""
    given, made = name_at(node.inputs, 0), name_at(node.outputs, 0)
    if given and made:
        sizes = writer.source(made, _INT64, (None,))
        graph.node.add(op_type="Reshape", input=[given, sizes], output=[made])


def _fused_convolution(writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """A convolution; where pads are by a rule, pads that are given too would count."""
    if "auto_pad" in node.attributes:
        _typed(writer, graph, node)
    else:
        _add(graph, "Conv", node, [name_at(node.inputs, place) for place in range(3)], _CLAMPED)


def _fused_product(writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """A product, if neither matrix lies turned."""
    turned = ("transA", "transB", "transBatchA", "transBatchB")
    if any(name in node.attributes and node.attributes[name].value for name in turned):
        _typed(writer, graph, node)
        return
    reads = [name_at(node.inputs, 0), name_at(node.inputs, 1)]
    _add(graph, "MatMul", node, reads, {*turned, "alpha"})


def _quantized_pair(writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """Either of both inputs, which broadcast to each other."""
    reads = [name_at(node.inputs, 0), name_at(node.inputs, 3)]
    if all(reads):
        _add(graph, "Where", node, [writer.source(reads[0], _BOOL, ()), *reads])


def _quantized_join(_writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """Each third input, behind the scale and zero point of the result."""
    reads = [name_at(node.inputs, place) for place in range(2, len(node.inputs), 3)]
    if all(reads):
        _add(graph, "Concat", node, reads)


def _quantized_pool(writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """Windows of images with their channels first."""
    special = ("auto_pad", "ceil_mode", "channels_last")
    if any(name in node.attributes and node.attributes[name].value for name in special):
        _typed(writer, graph, node)
        return
    op_type = str(node.op_type).removeprefix("QLinear")
    _add(graph, op_type, node, [name_at(node.inputs, 0)], special)


def _cast_to(place: int, otherwise: int | None) -> StandIn:
    """The first input in the type of another one, or in a type that is due where that is absent."""

    def stand_in(_writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
        given, made = name_at(node.inputs, 0), name_at(node.outputs, 0)
        element_type = _type_at(node, place, otherwise)
        if given and made and element_type is not None:
            _cast(graph, given, made, element_type)

    return stand_in


def _type_at(node: ir.Node, place: int, otherwise: int | None) -> int | None:
    """The element type of an input, if it is known."""
    value = node.inputs[place] if place < len(node.inputs) else None
    if value is None:
        return otherwise
    return None if value.dtype is None else int(value.dtype.value)


def _cast(graph: onnx.GraphProto, given: str, made: str, element_type: int) -> None:
    cast = graph.node.add(op_type="Cast", input=[given], output=[made])
    cast.attribute.add(name="to", type=_INT, i=element_type)


def _scaled_product(writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """A product of bytes in the type of its scale."""
    left, right, made = *(name_at(node.inputs, place) for place in (0, 1)), name_at(node.outputs, 0)
    element_type = _type_at(node, 2, None)
    if left and right and made and element_type is not None:
        product = f"{made}/product"
        graph.node.add(op_type="MatMul", input=[left, right], output=[product])
        _cast(graph, product, made, element_type)


def _embedded(_writer: SourceWriter, graph: onnx.GraphProto, node: ir.Node) -> None:
    """A row of the table of words for each word; the sum before it is normalized is like it."""
    words, table = name_at(node.inputs, 0), name_at(node.inputs, 2)
    for place in (0, 2):
        made = name_at(node.outputs, place)
        if words and table and made:
            graph.node.add(op_type="Gather", input=[table, words], output=[made])


OPTIMIZER_STAND_INS: dict[str, StandIn] = {
    "Attention": _typed,
    "DequantizeLinear": _cast_to(1, None),
    "DynamicQuantizeMatMul": _like("MatMul", (0, 1)),
    "EmbedLayerNormalization": _embedded,
    "FusedConv": _fused_convolution,
    "FusedGemm": _like("Gemm", (0, 1, 2), _BENT),
    "FusedMatMul": _fused_product,
    "MatMulIntegerToFloat": _scaled_product,
    "MultiHeadAttention": _typed,
    "QLinearAdd": _quantized_pair,
    "QLinearAveragePool": _quantized_pool,
    "QLinearConcat": _quantized_join,
    "QLinearGlobalAveragePool": _quantized_pool,
    "QLinearMul": _quantized_pair,
    "QuantizeLinear": _cast_to(2, _UINT8),
}
"""By operator, all of onnxruntime's own domain."""
