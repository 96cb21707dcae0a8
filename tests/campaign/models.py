"""ONNX files that were changed: bytes, and parts of their protobuf; read, asked about, compiled."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import helper

from partita_conformance.inputs.node_cases import node_cases

from . import numbers, tensors
from .cores import guarded_core


def case(seed):
    """Reads, queries and compiles one changed file."""
    rng = np.random.default_rng(seed)
    name = tensors.names()[rng.integers(len(tensors.names()))]
    data = node_cases()[name].model
    match rng.integers(4):
        case 0:
            data = other_bytes(rng, data)
        case 1:
            data = other_parts(rng, data)
        case 2:
            data = other_bytes(rng, other_parts(rng, data))
        case _:
            data = in_functions(rng, other_parts(rng, data))
    yield name
    core = guarded_core()
    model = core.read_model(data)
    yield f"{name}, read"
    core.query_model(model, "HETERO:CPU,REFERENCE")
    core.compile_model(model, "CPU")


def other_bytes(rng, data):
    """Some bytes changed, taken out, doubled or cut off."""
    broken = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        place = int(rng.integers(len(broken)))
        match rng.integers(4):
            case 0:
                broken[place] = int(rng.integers(256))
            case 1:
                del broken[place : place + int(rng.integers(1, 9))]
            case 2:
                broken[place:place] = broken[place : place + int(rng.integers(1, 30))]
            case _:
                broken[place : place + 5] = b"\xff\xff\xff\xff\x0f"
        if not broken:
            break
    if broken and rng.random() < 0.1:
        del broken[rng.integers(len(broken)) :]
    return bytes(broken)


def other_parts(rng, data):
    """Names, types, shapes, attributes and wiring changed."""
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    graph = proto.graph
    for _ in range(rng.integers(1, 4)):
        node = graph.node[rng.integers(len(graph.node))]
        names = [*node.input, *node.output, ""]
        match rng.integers(9):
            case 0:
                tensors.change_attributes(rng, graph.node)
            case 1 if node.input:
                node.input[rng.integers(len(node.input))] = names[rng.integers(len(names))]
            case 2 if node.output:
                node.output[rng.integers(len(node.output))] = names[rng.integers(len(names))]
            case 3:
                node.op_type = operators()[rng.integers(len(operators()))]
            case 4:
                proto.opset_import[0].version = int(rng.integers(1, 26))
            case 5:
                graph.node.append(node)
            case 6 if graph.input:
                hostile_type(rng, graph.input[rng.integers(len(graph.input))].type)
            case 7 if graph.initializer:
                tensor = graph.initializer[rng.integers(len(graph.initializer))]
                tensor.dims.append(numbers.hostile_integer(rng) % (1 << 63))
            case _:
                (node.output if rng.random() < 0.5 else node.input).append(f"more{rng.integers(9)}")
    return proto.SerializeToString()


def hostile_type(rng, kind):
    """Another element type, or other sizes."""
    tensor = kind.tensor_type
    if rng.random() < 0.4:
        tensor.elem_type = int(rng.integers(0, 27))
    for dim in tensor.shape.dim:
        if rng.random() < 0.5:
            dim.dim_value = numbers.hostile_integer(rng)


def in_functions(rng, data):
    """The nodes within a local function, which another one may call."""
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    graph = proto.graph
    inputs = [value.name for value in graph.input]
    outputs = [value.name for value in graph.output]
    opsets = [*proto.opset_import, helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "F0", inputs, outputs, list(graph.node), opsets)
    proto.functions.append(inner)
    for level in range(1, int(rng.integers(1, 4))):
        call = helper.make_node(f"F{rng.integers(level + 1)}", inputs, outputs, domain="own")
        proto.functions.append(
            helper.make_function("own", f"F{level}", inputs, outputs, [call], opsets)
        )
    del graph.node[:]
    last = f"F{len(proto.functions) - 1}"
    graph.node.append(helper.make_node(last, inputs, outputs, domain="own"))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto.SerializeToString()


@functools.cache
def operators():
    """All operators of ONNX's main domain."""
    return sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
