"""What ONNX's inference has found, as types and shapes of the model's values."""

from __future__ import annotations

import functools
from collections.abc import Container
from typing import TYPE_CHECKING

from partita.model.inference.followed_values import MADE_UP
from partita.model.value_uses import operations

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


def types_of(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """What is known of the values that operations compute, by name."""
    return {info.name: info.type for info in (*graph.value_info, *graph.output)}


@functools.cache
def data_type(element_type: int) -> ir.DataType:
    """A type by its number in protobufs."""
    import onnx_ir as ir

    return ir.DataType(element_type)


def take_over(ir_model: ir.Model, inferred: onnx.ModelProto) -> None:
    """Copies types and shapes of computed values, graph by graph as names may recur in bodies."""
    import onnx_ir as ir

    symbols = {
        dim.value
        for value in ir_model.graph.inputs
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim)
    }
    _take_over_graph(ir_model.graph, inferred.graph, symbols)
    _, within = operations(ir_model.graph)
    if within:
        others = _proto_bodies_within(inferred.graph)
        for body, other in zip(within, others, strict=True):
            _take_over_graph(body, other, symbols)


def _proto_bodies_within(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The bodies of a protobuf's operations, each before those within it."""
    found: list[onnx.GraphProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            own = [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs
            for body in own:
                found += [body, *_proto_bodies_within(body)]
    return found


def _take_over_graph(
    graph: ir.Graph, inferred: onnx.GraphProto, symbols: Container[str | None]
) -> None:
    """Copies types and shapes of one graph's values straight from the protobuf."""
    import onnx_ir as ir
    from onnx_ir import serde

    found = types_of(inferred)
    for node in graph:
        for value in node.outputs:
            kind = found.get(value.name or "")
            if kind is None:
                continue
            tensor = kind.tensor_type
            element_type = tensor.elem_type
            if element_type:
                # Nearly all are tensors, and onnx-ir takes four times as long to read their types.
                value.type = ir.TensorType(data_type(element_type))
                if not tensor.HasField("shape"):
                    value.shape = None
                    continue
                dims = [dim.dim_value or _dim(dim, symbols) for dim in tensor.shape.dim]
                if value.shape is None or value.shape.dims != tuple(dims):
                    value.shape = ir.Shape(dims)
                continue
            source = serde.deserialize_type_proto_for_type(kind)
            if source is None:
                continue
            value.type = source
            shape = serde.deserialize_type_proto_for_shape(kind)
            value.shape = None
            if shape is not None:
                value.shape = ir.Shape(None if _is_made_up(dim, symbols) else dim for dim in shape)


def _dim(dim: onnx.TensorShapeProto.Dimension, own: Container[str | None]) -> int | str | None:
    """A size that is 0 or not known, as a number, a symbol, or ``None``."""
    if dim.HasField("dim_value"):
        return dim.dim_value
    name = dim.dim_param
    return None if not name or (name.startswith(MADE_UP) and name not in own) else name


def _is_made_up(dim: int | ir.SymbolicDim, own: Container[str | None]) -> bool:
    return not isinstance(dim, int) and dim.value not in own and str(dim.value).startswith(MADE_UP)
