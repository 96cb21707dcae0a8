"""Graphs copied, and with channels last at some ports: right as they are, and after the walk."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from partita.lowering import Graph, Node, Value, lower_proto
from partita.lowering.nhwc.ports import converted_ports, with_ports_last

F32 = np.dtype(np.float32)
NHWC = (0, 2, 3, 1)


def graph_of(nodes, inputs, outputs):
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.ones((2,), np.float32), "two")],
    )
    return lower_proto(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


def branching():
    """An If whose bodies read outer values."""
    body = [
        helper.make_graph(
            [helper.make_node(op, ["a", "x"], [f"r{op}"])],
            op,
            [],
            [helper.make_tensor_value_info(f"r{op}", TensorProto.FLOAT, [2])],
        )
        for op in ("Add", "Sub")
    ]
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["a"], name="a"),
        helper.make_node("If", ["c"], ["y"], name="y", then_branch=body[0], else_branch=body[1]),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.full(2, 2, np.float32), "two")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return lower_proto(model)


def values_of(graph):
    found = {*graph.inputs, *graph.outputs}
    for node in graph.all_nodes():
        found.update(v for v in (*node.inputs, *node.outputs) if v is not None)
        for inner in node.graphs():
            found.update((*inner.inputs, *inner.outputs))
    return found


def test_a_copy_has_values_of_its_own_and_the_same_constants():
    graph = branching()
    copy = graph.copy()
    mine, theirs = values_of(graph), values_of(copy)
    constants = {value for value in mine if value.const is not None}
    assert constants
    assert mine & theirs == constants
    assert sorted(v.name for v in mine) == sorted(v.name for v in theirs)
    kinds = [(n.kind, n.name, n.origins) for n in graph.all_nodes()]
    assert kinds == [(n.kind, n.name, n.origins) for n in copy.all_nodes()]
    for node in copy.nodes:
        for value in node.outputs:
            assert value.producer is node


@pytest.mark.parametrize("flag", [True, False])
def test_a_copy_computes_the_same(flag):
    from partita_cpu.runtime.device_model import run_graph

    x = np.array([1.5, -2.0], np.float32)
    want = 2 * x + x if flag else 2 * x - x
    for graph in (branching(), branching().copy()):
        (found,) = run_graph(graph, {"x": x, "c": np.array(flag)})
        np.testing.assert_array_equal(found, want)


def image_graph():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="a"),
        helper.make_node("Neg", ["a"], ["y"], name="y"),
    ]
    return graph_of(nodes, {"x": [2, 3, 4, 5]}, {"y": [2, 3, 4, 5], "a": [2, 3, 4, 5]})


@pytest.mark.parametrize("inputs", [[], [0]])
@pytest.mark.parametrize("outputs", [[], [0], [0, 1]])
def test_ports_with_channels_last_compute_the_same(inputs, outputs, monkeypatch):
    from partita_cpu.runtime.device_model import run_graph

    graph = image_graph()
    before = [(node.kind, node.name) for node in graph.nodes]
    turned = with_ports_last(graph, inputs, outputs, F32)
    assert [(node.kind, node.name) for node in graph.nodes] == before
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    feed = np.ascontiguousarray(x.transpose(NHWC)) if inputs else x
    conversions = [node for node in turned.nodes if node.domain == "partita.nhwc"]
    assert len(conversions) == len(inputs) + len(outputs)
    assert converted_ports(turned) == (set(inputs), set(outputs))
    stand_ins = _as_transposes(turned)
    found = run_graph(stand_ins, [feed])
    wanted = [-np.maximum(x, 0), np.maximum(x, 0)]
    for index, (have, want) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(have, want.transpose(NHWC) if index in outputs else want)


def _as_transposes(graph):
    """The graph with ONNX's Transpose in place of the conversions, for any machine."""
    perms = {"ToChannelsLast": [0, 2, 3, 1], "ToChannelsFirst": [0, 3, 1, 2]}
    nodes = [
        Node("Transpose", n.inputs, n.outputs, {"perm": perms[n.op_type]}, version=13, name=n.name)
        if n.op_type in perms
        else n
        for n in graph.nodes
    ]
    return Graph(graph.inputs, graph.outputs, nodes, graph.name)


def test_shapes_of_ports_are_those_in_memory():
    turned = with_ports_last(image_graph(), [0], [1], F32)
    assert turned.inputs[0].shape == (2, 4, 5, 3)
    assert [value.shape for value in turned.outputs] == [(2, 3, 4, 5), (2, 4, 5, 3)]
    unknown = Graph([Value("x", F32)], [], [])
    assert with_ports_last(unknown, [0], [], F32).inputs[0].shape is None
