"""Constants that are nodes become weights: some exporters write hundreds of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir


def lift_constants(ir_model: ir.Model, nodes: Iterable[ir.Node]) -> None:
    """Turns Constants into initializers of their graphs, but for those that are outputs.

    Args:
        ir_model: Changed in place.
        nodes: Its operations, those in bodies included.
    """
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    constants = [node for node in nodes if node.op_type == "Constant" and node.domain == ""]
    unusual = [node for node in constants if not _lift(node)]
    for node in unusual:
        _encode_strings(node)
    if unusual:
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(ir_model)


def _lift(node: ir.Node) -> bool:
    """Turns a Constant of a tensor into an initializer, in a fifth of onnx-ir's time.

    Returns:
        Whether it is one; what holds something else, or is an output, onnx-ir's pass looks at.
    """
    import onnx_ir as ir

    attribute, made, graph = node.attributes.get("value"), node.outputs[0], node.graph
    if attribute is None or attribute.type.name != "TENSOR" or attribute.is_ref():
        return False
    if len(node.attributes) > 1 or len(node.outputs) > 1 or graph is None:
        return False
    if not made.name or made.is_graph_output():
        return False
    tensor: Any = attribute.value
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name=made.name, shape=tensor.shape, type=kind, const_value=tensor)
    value.metadata_props.update(made.metadata_props)
    graph.register_initializer(value)
    made.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    return True


def _encode_strings(node: ir.Node) -> None:
    """Turns string attributes of a Constant into a tensor; onnx-ir would only take ASCII."""
    import onnx_ir as ir

    for name in ("value_string", "value_strings"):
        if name in node.attributes:
            attribute = node.attributes.pop(name)
            scalar = name == "value_string"
            texts = [attribute.as_string()] if scalar else list(attribute.as_strings())
            tensor = ir.StringTensor(
                [text.encode() for text in texts], shape=ir.Shape([] if scalar else [len(texts)])
            )
            node.attributes["value"] = ir.AttrTensor("value", tensor)
