"""Signatures: equal for equal work, different for everything that can change its time."""

from __future__ import annotations

import numpy as np
import pytest
from models import FLOAT, if_with_capture, model_of, node, value, weight
from onnx import TensorProto

from partita.frontends.reader import read_model
from partita_hetero.cost.signature import Signatures
from partita_hetero.partition.op_graph import OpGraph


def signatures(proto):
    op_graph = OpGraph.of(read_model(proto))
    return Signatures(op_graph), op_graph


def conv(
    name="c", shape=(1, 3, 8, 8), channels=4, seed=0, opset=17, relu="Relu", dtype=FLOAT, **attrs
):
    kind = np.float64 if dtype == TensorProto.DOUBLE else np.float32
    weights = np.random.default_rng(seed).standard_normal((channels, shape[1], 3, 3)).astype(kind)
    return model_of(
        [node("Conv", ["x", f"{name}w"], f"{name}y", name, **attrs), node(relu, [f"{name}y"], "z")],
        [value("x", shape, dtype)],
        ["z"],
        [weight(f"{name}w", weights)],
        opset=opset,
    )


def of(proto):
    one, op_graph = signatures(proto)
    return one.of(range(len(op_graph.nodes)))


def test_names_and_weights_do_not_count():
    assert of(conv()) == of(conv("other", seed=1))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (1, 3, 8, 9)},
        {"shape": (2, 3, 8, 8)},
        {"channels": 5},
        {"strides": [2, 2]},
        {"opset": 16},
        {"relu": "Abs"},
        {"dtype": TensorProto.DOUBLE},
    ],
)
def test_what_can_change_the_time_counts(change):
    assert of(conv()) != of(conv(**change))


def test_which_values_come_out_counts():
    one, _ = signatures(conv())
    assert one.of([0, 1]) == one.of([0, 1], ["z"])
    assert len({one.of([0, 1], ["z"]), one.of([0, 1], ["cy", "z"]), one.of([0]), one.of([1])}) == 4


def test_wiring_counts():
    def pair(second):
        nodes = [node("Relu", ["x"], "a"), node("Abs", ["x"], "b"), node("Sub", second, "y")]
        return of(model_of(nodes, [value("x", [3])], ["y"]))

    assert len({pair(["a", "b"]), pair(["b", "a"]), pair(["a", "a"])}) == 3


def test_small_integer_constants_count():
    def reshape(shape):
        nodes = [node("Reshape", ["x", "s"], "y")]
        return of(model_of(nodes, [value("x", [4, 6])], ["y"], [weight("s", np.array(shape))]))

    assert reshape([6, 4]) != reshape([24, 1])
    assert reshape([6, 4]) == reshape([6, 4])


def test_bodies_count():
    other = if_with_capture()
    other.graph.node[0].attribute[0].g.node[0].op_type = "Sub"
    assert of(if_with_capture()) == of(if_with_capture())
    assert of(other) != of(if_with_capture())


def test_constant_operations_are_part_of_the_work():
    def filled(number):
        nodes = [
            node("ConstantOfShape", ["s"], "w"),
            node("MatMul", ["x", "w"], "y"),
        ]
        shape = weight("s", np.array([3, number]))
        return model_of(nodes, [value("x", [2, 3])], ["y"], [shape])

    (one, _), (two, _) = signatures(filled(4)), signatures(filled(5))
    assert one.of([1]) == signatures(filled(4))[0].of([1])
    assert one.of([1]) != two.of([1])


def test_work_of_unknown_shape_is_only_equal_to_itself():
    def chain(*types):
        names = ["x", *(f"v{i}" for i in range(len(types)))]
        nodes = [node(t, [names[i]], names[i + 1]) for i, t in enumerate(types)]
        return signatures(model_of(nodes, [value("x", ["N", 3])], [names[-1]]))[0]

    one = chain("Relu", "Relu", "Abs")
    assert one.of([0]) != one.of([1])
    assert one.of([0]) == chain("Relu", "Relu", "Abs").of([0])
    assert one.of([0]) != chain("Relu", "Relu", "Neg").of([0])


def test_labels():
    one, _ = signatures(conv())
    assert one.label([0, 1]) == "Conv+Relu float32[1,4,6,6]"
    many, op_graph = signatures(
        model_of([node("Relu", [f"v{i}"], f"v{i + 1}") for i in range(6)], ["v0"], ["v6"])
    )
    assert many.label(range(len(op_graph.nodes))) == "Relu+Relu+Relu+Relu+2 more float32[?]"
