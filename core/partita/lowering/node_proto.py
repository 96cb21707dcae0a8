"""Single lowered nodes as ONNX protobufs, for what onnx itself knows about operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.lowering.graph import Node

if TYPE_CHECKING:
    import onnx


def node_proto(node: Node) -> onnx.NodeProto:
    """The node with inputs ``x0, x1, ...`` and outputs ``y0, y1, ...``; bodies are left out."""
    from onnx import helper, numpy_helper

    proto = helper.make_node(
        node.op_type,
        ["" if value is None else f"x{i}" for i, value in enumerate(node.inputs)],
        ["" if value is None else f"y{i}" for i, value in enumerate(node.outputs)],
        name=node.name,
        domain=node.domain,
    )
    for key, attr in node.attrs.items():
        if isinstance(attr, np.ndarray):
            attr = numpy_helper.from_array(attr)
        elif not isinstance(attr, (int, float, str, bytes, list)):
            continue
        if not isinstance(attr, list) or attr:
            proto.attribute.append(helper.make_attribute(key, attr))
    return proto


def model_proto(
    node: Node,
    proto: onnx.NodeProto,
    opsets: Sequence[tuple[str, int]],
    functions: Sequence[Any] = (),
) -> onnx.ModelProto:
    """A model of one node; its inputs and outputs have the types that the node's values have.

    Args:
        node: What the types of inputs come from.
        proto: The same node in ONNX's form, which becomes the graph.
        opsets: Domain and version of each operator set that it imports.
        functions: Functions of the model that the node may call, in ONNX's form.
    """
    from onnx import helper

    graph = helper.make_graph(
        [proto],
        node.name or node.op_type,
        [
            helper.make_value_info(name, _type(value))
            for name, value in zip(proto.input, node.inputs, strict=False)
            if name
        ],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def input_types(node: Node) -> list[bytes]:
    """The serialized types of the node's inputs, for functions that depend on them."""
    return [_type(value).SerializeToString() for value in node.inputs]


def _type(value: Any) -> onnx.TypeProto:
    import onnx
    from onnx import helper

    proto = onnx.TypeProto()
    if value is not None and value.dtype is not None:
        shape = None if value.shape is None else list(value.shape)
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        proto = helper.make_tensor_type_proto(kind, shape)
    return proto
