"""Made-up inputs: that onnxruntime can compute models with them, and what they say."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from decoders import grouped_decoder
from models import model_of, node, value, weight
from onnx import TensorProto, helper

import partita
from partita.model.synthetic_inputs import synthetic_inputs

INT = TensorProto.INT64
F32 = np.float32
DATA = weight("data", np.zeros((50, 7), F32))


def index(*dims):
    return value("i", list(dims), INT)


def made(proto, seed=0):
    model = partita.Core().read_model(proto)
    feeds = synthetic_inputs(model, np.random.default_rng(seed))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return feeds, session.run(None, feeds)


def rate_model(*forms):
    """A model of a branch for 16,000 and another one, which reads what is not there."""

    def branch(op, reads, name):
        return helper.make_graph([node(op, ["x", reads], name)], name, [], [value(name, None)])

    nodes, at = [], "sr"
    for number, (op, *others) in enumerate(forms):
        nodes.append(node(op, [at, *others], f"form{number}"))
        at = f"form{number}"
    choose = {
        "then_branch": branch("MatMul", "w", "a"),
        "else_branch": branch("Gather", "far", "b"),
    }
    nodes += [node("Equal", [at, "rate"], "is"), node("If", ["is"], ["y"], **choose)]
    weights = [
        weight("w", np.ones((8, 2), F32)),
        weight("far", np.array([[99]])),
        weight("rate", np.int64(16000)),
        weight("one", np.array([1])),
        weight("zero", np.int64(0)),
    ]
    return model_of(nodes, [value("x", [1, 8]), value("sr", [], INT)], ["y"], weights)


@pytest.mark.parametrize("forms", [[], [("Identity",)], [("Reshape", "one"), ("Gather", "zero")]])
def test_a_choice_is_one_that_the_model_knows(forms):
    feeds, outputs = made(rate_model(*forms))
    assert feeds["sr"].shape == ()
    assert feeds["sr"] == 16000
    assert outputs[0].shape == (1, 2)


def test_the_constant_may_come_first():
    proto = rate_model()
    proto.graph.node[0].input[:] = ["rate", "sr"]
    assert made(proto)[0]["sr"] == 16000


def test_ids_that_are_compared_with_padding_are_no_padding():
    proto = model_of(
        [
            node("Equal", ["i", "pad"], "padded"),
            node("Cast", ["padded"], "z", to=TensorProto.FLOAT),
            node("Gather", ["data", "i"], "y"),
        ],
        [index(1, 40)],
        ["y", "z"],
        [DATA, weight("pad", np.int64(1))],
    )
    ids = made(proto)[0]["i"]
    assert len(np.unique(ids)) > 10


@pytest.mark.parametrize(
    ("proto", "most"),
    [
        (model_of([node("Gather", ["data", "i"], "y")], [index(300)], ["y"], [DATA]), 50),
        (model_of([node("Gather", ["data", "i"], "y", axis=-1)], [index(99)], ["y"], [DATA]), 7),
        (
            model_of([node("GatherElements", ["data", "i"], "y")], [index(50, 7)], ["y"], [DATA]),
            50,
        ),
        (model_of([node("GatherND", ["data", "i"], "y")], [index(99, 2)], ["y"], [DATA]), 7),
        (
            model_of(
                [node("ScatterElements", ["data", "i", "u"], "y")],
                [index(40, 7)],
                ["y"],
                [DATA, weight("u", np.zeros((40, 7), F32))],
            ),
            50,
        ),
        (
            model_of(
                [node("ScatterND", ["data", "i", "u"], "y")],
                [index(99, 2)],
                ["y"],
                [DATA, weight("u", np.zeros(99, F32))],
            ),
            7,
        ),
        (
            model_of(
                [node("OneHot", ["i", "depth", "values"], "y")],
                [index(300)],
                ["y"],
                [weight("depth", np.int64(30)), weight("values", np.array([0, 1], F32))],
            ),
            30,
        ),
    ],
)
def test_indices_are_in_bounds_and_use_them(proto, most):
    for seed in range(3):
        found = made(proto, seed)[0]["i"]
        assert found.min() >= 0
        assert most // 2 < found.max() < most


def test_indices_into_an_unknown_size_are_0_or_1():
    proto = model_of([node("Gather", ["x", "i"], "y")], [value("x", ["n"]), index(99)], ["y"])
    model = partita.Core().read_model(proto)
    found = synthetic_inputs(model, np.random.default_rng(0))["i"]
    assert set(found.tolist()) == {0, 1}


def test_masks_are_ones():
    proto = model_of(
        [node("Cast", ["attention_mask"], "y", to=TensorProto.FLOAT)],
        [value("attention_mask", [2, 9], INT)],
        ["y"],
    )
    assert made(proto)[1][0].tolist() == [[1] * 9] * 2


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_sequences_have_their_full_length(op):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    proto = model_of(
        [node(op, ["x", "w", "r", "", "i"], ["", "y"], hidden_size=3)],
        [value("x", [6, 2, 5]), value("i", [2], TensorProto.INT32)],
        ["y"],
        [
            weight("w", np.zeros((1, gates * 3, 5), F32)),
            weight("r", np.zeros((1, gates * 3, 3), F32)),
        ],
    )
    assert made(proto)[0]["i"].tolist() == [6, 6]


@pytest.mark.parametrize(
    ("operator", "expected", "shape"),
    [
        (node("Reshape", ["x", "i"], "y"), [1, -1], (1, 24)),
        (node("Expand", ["x", "i"], "y"), [1, 1], (4, 6)),
        (node("Tile", ["x", "i"], "y"), [1, 1], (4, 6)),
        (node("Slice", ["x", "i", "ends"], "y"), [0, 0], (4, 6)),
        (node("Slice", ["x", "zeros", "i"], "y"), None, (4, 6)),
        (node("Slice", ["x", "zeros", "ends", "axes", "i"], "y"), [1, 1], (4, 6)),
    ],
)
def test_shapes_and_bounds_leave_something(operator, expected, shape):
    read = operator.input[1:]
    weights = {"ends": [9, 9], "zeros": [0, 0], "axes": [0, 1]}
    proto = model_of(
        [operator],
        [value("x", [4, 6]), index(2)],
        ["y"],
        [weight(name, np.array(w)) for name, w in weights.items() if name in read],
    )
    feeds, outputs = made(proto)
    assert expected is None or feeds["i"].tolist() == expected
    assert outputs[0].shape == shape


def test_only_what_is_wanted_is_made():
    proto = model_of([node("Add", ["a", "b"], "y")], [value("a", [2]), "b"], ["y"])
    model = partita.Core().read_model(proto)
    feeds = synthetic_inputs(model, np.random.default_rng(0), model.inputs[:1])
    assert list(feeds) == ["a"]


@pytest.mark.parametrize("tokens", [None, 1, 5])
def test_a_text_is_new_to_the_cache_that_attention_reads(tokens):
    proto = grouped_decoder(8)
    if tokens is not None:
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = tokens
    feeds, _ = made(proto)
    tokens = tokens or 1
    assert feeds["x"].shape[1] == feeds["total_sequence_length"] == tokens
    np.testing.assert_array_equal(feeds["seqlens_k"], [tokens - 1])
