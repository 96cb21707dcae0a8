"""Expands operators that ONNX defines as functions, where a back-end has no kernel for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from partita.lowering.graph import Graph, Node, Value
from partita.lowering.models.corrected_definitions import corrected, holds
from partita.lowering.models.model_lowering import lower_ir
from partita.lowering.models.quantized_convolution import quantized_definition
from partita.lowering.models.training_normalization import training_definition
from partita.lowering.node_proto import input_types, model_proto, node_proto
from partita.model.operator_checks import check_inputs

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger(__name__)

_DEPTH = 4
"""Functions may be made of functions; none is nested deeper."""


def expand_functions(graph: Graph, accepts: Callable[[Node], bool]) -> None:
    """Replaces every node that a back-end does not take by ONNX's definition of it, in place.

    Bodies of If, Loop and Scan included. Nodes that ONNX does not define by others stay, and so do
    those whose definition has an operator that the back-end does not take either.
    """
    kept: list[Node] = []
    for node in graph.nodes:
        for body in node.graphs():
            expand_functions(body, accepts)
        kept += [node] if accepts(node) else expansion(node, accepts) or [node]
    graph.nodes = kept


def expansion(node: Node, accepts: Callable[[Node], bool], depth: int = _DEPTH) -> list[Node]:
    """The nodes that compute the same, all of them taken by the back-end; empty if there are none.

    The last ones write the node's own outputs; all have its origins.
    """
    from onnx.defs import onnx_opset_version

    function = None if depth == 0 or any(node.graphs()) else definition_of(node)
    if function is None:
        return []
    proto = _with_defaults(node)
    opsets = [(entry.domain, entry.version) for entry in function.opset_import]
    if all(domain != node.domain for domain, _ in opsets):
        opsets.append((node.domain, node.version))
    if all(domain for domain, _ in opsets):
        # Definitions in other domains do not say which operators of ONNX's they mean: this onnx's.
        opsets.append(("", onnx_opset_version()))
    if not _complete(function, node):
        return []
    # The inliner wants a name for every output.
    rest = range(len(proto.output), len(function.output))
    proto.output[:] = [name or f"none{i}" for i, name in enumerate(proto.output)]
    proto.output.extend(f"none{i}" for i in rest)
    # A domain of its own, so that operators of the same name inside mean ONNX's.
    function.domain = proto.domain = "partita.expansion"
    opsets.append((function.domain, 1))
    try:
        body = _lowered(model_proto(node, proto, opsets, [function]))
    except (RuntimeError, ValueError, KeyError) as error:
        _log.debug("Cannot expand '%s' (%s): %s", node.name, node.kind, error)
        return []
    _connect(body, node)
    body.prune()
    nodes: list[Node] = []
    for part in body.nodes:
        part.name, part.origins = f"{node.name}/{part.op_type}", node.origins
        parts = [part] if accepts(part) else expansion(part, accepts, depth - 1)
        if not parts:
            for value in node.outputs:
                if value is not None:
                    value.producer = node
            return []
        nodes += parts
    return nodes


def _lowered(model: onnx.ModelProto) -> Graph:
    """The lowered graph of a model of one function, its values typed as far as possible.

    Raises:
        ModelFormatError: It reads an input that the node leaves out.
    """
    import onnx_ir as ir
    from onnx_ir.passes.common import InlinePass

    from partita.model.inference.shape_inference import infer_shapes

    inlined = InlinePass()(ir.from_proto(model)).model
    nodes = ir.traversal.RecursiveGraphIterator(inlined.graph)
    check_inputs(nodes, inlined.opset_imports)
    infer_shapes(inlined)
    return lower_ir(inlined)


def definition_of(node: Node) -> onnx.FunctionProto | None:
    """ONNX's definition of the operator for these attributes and input types, put right.

    BatchNormalization in training mode and QLinearConv have none in ONNX but in words. ``None`` if
    there is none, or it does not hold for these types.
    """
    import onnx
    from onnx.defs import SchemaError, get_schema

    try:
        # Typed loosely: onnx's stubs know the schema's attributes only in part.
        schema: Any = get_schema(node.op_type, node.version, node.domain)
    except SchemaError:
        return None
    function = training_definition(node) or quantized_definition(node)
    if function is not None:
        return function
    if not holds(node):
        return None
    function = onnx.FunctionProto()
    if schema.has_function:
        function.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        if any(value is not None and value.dtype is None for value in node.inputs):
            return None
        versions = [
            v for v in schema.context_dependent_function_opset_versions if v <= node.version
        ]
        proto = _with_defaults(node).SerializeToString()
        try:
            function.ParseFromString(
                schema.get_context_dependent_function_with_opset_version(
                    max(versions), proto, input_types(node)
                )
            )
        except (RuntimeError, ValueError):
            return None
    return corrected(node, function) if function.node else None


def _complete(function: onnx.FunctionProto, node: Node) -> bool:
    """Whether the function computes all outputs that are read; others get a dummy.

    Functions that depend on the node leave out what belongs to outputs it does not have.
    """
    from onnx import helper

    made = {name for part in function.node for name in part.output}
    for position, name in enumerate(function.output):
        if name not in made:
            if position < len(node.outputs) and node.outputs[position] is not None:
                return False
            function.node.append(helper.make_node("Constant", [], [name], value_int=0))
    return True


def _with_defaults(node: Node) -> onnx.NodeProto:
    """The node with the default values of the attributes it leaves out: functions refer to them."""
    from onnx.defs import get_schema

    proto = node_proto(node)
    given = {attribute.name for attribute in proto.attribute}
    schema: Any = get_schema(node.op_type, node.version, node.domain)
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            proto.attribute.append(attribute.default_value)
    return proto


def _connect(body: Graph, node: Node) -> None:
    """Makes a lowered body read the node's inputs and write its outputs."""
    given = [value for value in node.inputs if value is not None]
    renamed: dict[Value, Value] = dict(zip(body.inputs, given, strict=True))
    for source, target in zip(body.outputs, node.outputs, strict=False):
        if target is None:
            continue
        if source in renamed or source.const is not None:
            body.nodes.append(Node("Identity", [source], [target]))
        else:
            renamed[source] = target
    body.outputs = [value for value in node.outputs if value is not None]
    for part in body.nodes:
        part.inputs = [None if v is None else renamed.get(v, v) for v in part.inputs]
        part.outputs = [None if v is None else renamed.get(v, v) for v in part.outputs]
        for value in part.outputs:
            if value is not None:
                value.producer = part
