"""The protobuf of a drawn model: everything around its nodes."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from partita_conformance.draws.makeup.names import GRAPHS
from partita_conformance.draws.makeup.writer import Value, Writer, info

_VERSIONS = {"13": 13, "21": 21, "18": 18, "11": 11}
_IR = {21: 10, 11: 6}
_NOBODYS = ("com.nobody", 1)


def version_of(opsets: str) -> int:
    """The opset of ONNX's own operators, of a choice of the trait ``opsets``."""
    return _VERSIONS.get(opsets, 17)


def imports_of(opsets: str) -> list[onnx.OperatorSetIdProto]:
    """What a model imports."""
    own = ("ai.onnx" if opsets == "by long name" else "", version_of(opsets))
    ahead = {"another domain ahead": [_NOBODYS], "ml ahead": [("ai.onnx.ml", 3)]}.get(opsets, [])
    behind = [_NOBODYS] if opsets == "another domain behind" else []
    return [helper.make_opsetid(*one) for one in (*ahead, own, *behind)]


def packaged(model: Any) -> onnx.ModelProto:
    """The protobuf of what was written.

    Args:
        model: A model of :mod:`partita_conformance.draws.makeup.built`.
    """
    makeup, writer = model.makeup, model.writer
    inputs = [*model.inputs, *(info(v, v.array.shape) for v in writer.listed)]
    if makeup["ports"] == "the other way round":
        inputs.reverse()
    main = writer.main
    outputs = [info(v, _shape(makeup, v, place)) for place, v in enumerate(model.outputs)]
    weights = main.weights[::-1] if makeup["order"] == "initializers backwards" else main.weights
    graph = helper.make_graph(
        _ordered(makeup["order"], main.nodes),
        GRAPHS[makeup["the graph's name"]],
        inputs,
        outputs,
        weights,
        sparse_initializer=main.sparse,
    )
    imports = imports_of(makeup["opsets"])
    if model.functions:
        imports.append(helper.make_opsetid("local", 1))
    version = version_of(makeup["opsets"])
    proto = helper.make_model(
        graph,
        opset_imports=imports,
        ir_version=_IR.get(version, 8),
        functions=model.functions,
    )
    proto.producer_name = ""
    _say(proto, makeup["it says"], writer)
    return proto


def _ordered(order: str, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    if order == "unsorted":
        return nodes[::-1]
    if order != "constants last":
        return nodes
    placed: list[onnx.NodeProto] = []
    late = [node for node in nodes if node.op_type == "Constant"]
    for node in nodes:
        if node.op_type == "Constant":
            continue
        placed += [one for one in late if one.output[0] in node.input]
        late = [one for one in late if one.output[0] not in node.input]
        placed.append(node)
    made = {name for node in placed for name in node.output}
    if any(n in {o for c in late for o in c.output} for node in placed for n in node.input):
        return nodes
    return placed + late if made else nodes


def _shape(makeup: Any, value: Value, place: int) -> list[int | str] | None:
    """What a model says of the shape of an output."""
    if makeup["ports"] == "of outputs of other symbols":
        return [f"{'AB'[axis]}{place}" for axis in range(value.array.ndim)]
    if makeup["ports"] in ("of any rows", "of any sizes", "of outputs of no shape"):
        return None
    bodies = "branch" in makeup["the second step is"] or "loop" in makeup["the second step is"]
    return None if bodies else [*value.array.shape]


def _say(proto: onnx.ModelProto, what: str, writer: Writer) -> None:
    graph = proto.graph
    if what == "documents":
        for thing in (proto, graph, *graph.node, *graph.input, *graph.output):
            thing.doc_string = "What this is, at length.\n" * 3
    elif what == "metadata":
        for key, value in (("labels", "a,b"), ("", "of no key"), ("\u00e4 b", "{}"), ("x", "")):
            proto.metadata_props.add(key=key, value=value)
    elif what == "its producer":
        proto.producer_name, proto.producer_version = "somebody", "1.0"
        proto.domain, proto.model_version = "com.somebody", 7
    elif what == "types of values":
        outputs = {value.name for value in graph.output}
        inner = [value for value in writer.values if value.name not in outputs]
        graph.value_info.extend(info(value) for value in inner)
    elif what == "of nodes":
        for node in graph.node:
            node.metadata_props.add(key="namespace", value="a/b")
