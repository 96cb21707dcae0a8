"""Values that onnx's inference follows: of short rows, as far as shapes are computed of them."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

import partita
from partita.model.inference.followed_values import MOST_ELEMENTS, infer_following
from partita_conformance.inputs.node_cases import node_cases

CLAIMED = 2**31 - 3
FOLLOWERS = {
    "Add",
    "Cast",
    "Concat",
    "Gather",
    "Mul",
    "Size",
    "Slice",
    "Sub",
    "Squeeze",
    "Unsqueeze",
}


def node(op_type, inputs, output, **attributes):
    return helper.make_node(op_type, inputs.split(","), [output], **attributes)


def model(nodes, inputs, constants=(), output="y"):
    """A model; inputs are names and shapes of int64."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, 7, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(output, 7, None)],
        [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in dict(constants).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def shapes(proto):
    """Sizes of all values; what is not known, or named by onnx, is ``None``."""
    return {
        info.name: [
            dim.dim_value
            if dim.HasField("dim_value")
            else dim.dim_param or None
            if not dim.dim_param.startswith("unk__")
            else None
            for dim in info.type.tensor_type.shape.dim
        ]
        for info in (*proto.graph.value_info, *proto.graph.output)
        if info.type.tensor_type.HasField("shape")
    }


@pytest.fixture
def longest(monkeypatch):
    """The longest row that operations which follow values read of a model, in each round."""
    found, infer = [], shape_inference.infer_shapes

    def noted(proto, data_prop=False, **more):
        if not data_prop:
            return infer(proto, **more)
        lengths = {}
        known = infer(proto).graph
        graphs = [known, *(a.g for n in known.node for a in n.attribute if a.HasField("g"))]
        for graph in graphs:
            for info in (*graph.input, *graph.value_info, *graph.output):
                dims = info.type.tensor_type.shape.dim
                lengths[info.name] = dims[0].dim_value if len(dims) == 1 else 0
        read = [
            (sum if n.op_type == "Concat" else max)(lengths.get(name, 0) for name in n.input)
            for graph in graphs
            for n in graph.node
            if n.op_type in FOLLOWERS
        ]
        found.append(max(read, default=0))
        return infer(proto, data_prop=found[-1] <= MOST_ELEMENTS)

    monkeypatch.setattr(shape_inference, "infer_shapes", noted)
    return found


@pytest.mark.parametrize("op_type", sorted(FOLLOWERS - {"Concat"}))
def test_a_row_that_a_file_claims_is_not_followed(op_type, longest):
    reads = {"Gather": "x,i", "Slice": "x,i,i", "Squeeze": "x", "Unsqueeze": "x,i"}
    reads |= dict.fromkeys(("Cast", "MeanVarianceNormalization", "Size"), "x")
    more = {"to": TensorProto.FLOAT} if op_type == "Cast" else {}
    nodes = [
        node("Reshape", "s,m", "open"),  # so that values are asked for,
        node("Shape", "s", "sizes"),  # and there are some
        node(op_type, reads.get(op_type, "x,x"), "y", **more),
    ]
    made = model(nodes, {"x": [CLAIMED], "s": ["N"]}, {"i": [0], "m": [1, -1]})
    infer_following(made)
    assert longest and max(longest) <= MOST_ELEMENTS


def test_reading_follows_no_row_that_a_file_claims(longest):
    nodes = [node("Reshape", "s,m", "open"), node("Shape", "s", "sizes")]
    nodes.append(node("Cast", "x", "y", to=TensorProto.INT64))
    made = model(nodes, {"x": [CLAIMED], "s": ["N"]}, {"m": [1, -1]})
    assert partita.Core().read_model(made).outputs[0].shape == (CLAIMED,)
    assert longest and max(longest) <= MOST_ELEMENTS


def test_no_values_are_asked_for_where_none_follow(longest):
    nodes = [node("Reshape", "x,m", "open"), node("Add", "open,bias", "y")]
    made = model(nodes, {"x": ["N", 4]}, {"m": [1, -1, 2, 2], "bias": [1, 2]})
    found = infer_following(made)
    assert shapes(found)["y"] == [1, None, 2, 2]
    assert not longest
    assert [list(one.input) for one in found.graph.node] == [["x", "m"], ["open", "bias"]]


def test_a_row_whose_length_is_computed_is_not_followed(longest):
    """Its length is found while values are followed: 2**16 times 2**15."""
    nodes = [
        node("Shape", "x", "sizes"),
        *(node("Gather", f"sizes,{axis}", f"size{axis}", axis=0) for axis in "01"),
        node("Mul", "size0,size1", "count"),
        node("Reshape", "x,count", "row"),
        node("Cast", "row", "y", to=TensorProto.INT64),
    ]
    made = model(nodes, {"x": [1 << 16, 1 << 15]}, {"0": [0], "1": [1]})
    assert shapes(infer_following(made))["y"] == [1 << 31]
    assert max(longest) <= MOST_ELEMENTS


def test_a_short_row_whose_length_is_computed_is_followed_once_it_is_known():
    nodes = [
        node("Shape", "x", "sizes"),
        node("Gather", "sizes,0", "size0", axis=0),
        node("Reshape", "x,size0", "row"),  # two elements
        node("Concat", "row,five", "target", axis=0),
        node("Reshape", "z,target", "y"),
    ]
    made = model(nodes, {"x": [2, 1], "z": [3, 5, "N"]}, {"0": [0], "five": [5]})
    assert shapes(infer_following(made))["y"] == [None, None, 5]


def test_rows_that_double_are_not_followed(longest):
    names = ["x", *(f"c{n}" for n in range(20)), "y"]
    nodes = [node("Concat", f"{a},{a}", b, axis=0) for a, b in itertools.pairwise(names)]
    made = model(nodes, {"x": [64], "s": ["N"]})
    made.graph.node.append(node("Reshape", "s,x", "open"))
    assert shapes(infer_following(made))["y"] == [64 << 21]
    assert max(longest) <= MOST_ELEMENTS


def test_rows_of_bodies_are_not_followed(longest):
    branches = {
        name: helper.make_graph(
            [node("Cast", "x", name, to=TensorProto.INT32), node("Shape", "s", f"{name}/open")],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.INT32, None)],
        )
        for name in ("then_branch", "else_branch")
    }
    made = model([node("If", "c", "y", **branches)], {"x": [CLAIMED], "c": [], "s": ["N"]})
    made.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    made.graph.node.append(node("Reshape", "s,x", "open"))
    found = infer_following(made)
    assert max(longest) <= MOST_ELEMENTS
    read = [n.input[0] for a in found.graph.node[0].attribute for n in a.g.node]
    assert read == ["x", "s"] * 2  # nothing that was put in its place is left


@pytest.mark.parametrize("part", range(4))
def test_all_is_found_that_onnx_finds_of_its_own_cases(part):
    for name, case in list(node_cases().items())[part::28]:
        made = onnx.ModelProto()
        made.ParseFromString(case.model)
        for value in made.graph.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
        wanted, found = shape_inference.infer_shapes(made, data_prop=True), infer_following(made)
        assert [n.input for n in found.graph.node] == [n.input for n in made.graph.node]
        assert list(found.graph.input) == list(made.graph.input)
        got = shapes(found)
        for value, sizes in shapes(wanted).items():
            told = got[value]
            assert len(told) == len(sizes), (name, value)
            assert all(a in (None, b) for a, b in zip(sizes, told, strict=True)), (name, value)
