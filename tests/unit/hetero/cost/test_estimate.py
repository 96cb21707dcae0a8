"""Estimates: the arithmetic of operators by their definition, and what calibration makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from models import model_of, node, value, weight

from partita.frontends.reader import read_model
from partita_hetero.cost.estimate import Work, rates, work_of
from partita_hetero.partition.op_graph import OpGraph


def work(nodes, inputs, outputs, weights=()):
    op_graph = OpGraph.of(read_model(model_of(nodes, inputs, outputs, weights)))
    return work_of(op_graph, range(len(op_graph.nodes)))


def ones(name, *shape):
    return weight(name, np.ones(shape, np.float32))


def test_a_convolution():
    got = work(
        [node("Conv", ["x", "w"], "y", group=2, strides=[2, 2])],
        [value("x", [1, 4, 9, 9])],
        ["y"],
        [ones("w", 6, 2, 3, 3)],
    )
    outputs = 6 * 4 * 4
    assert got.flops == 2 * outputs * 2 * 3 * 3
    assert got.nbytes == 4 * (4 * 9 * 9 + 6 * 2 * 3 * 3 + outputs)


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes", "flops"),
    [
        ("MatMul", ([5, 7, 3], [3, 4]), {}, 2 * 5 * 7 * 3 * 4),
        ("Gemm", ([3, 7], [3, 4]), {"transA": 1}, 2 * 7 * 3 * 4),
        ("ConvTranspose", ([1, 2, 5, 5], [2, 4, 3, 3]), {}, 2 * (2 * 5 * 5) * 4 * 3 * 3),
    ],
)
def test_products(kind, shapes, attributes, flops):
    inputs = [value("x", shapes[0])]
    nodes = [node(kind, ["x", "w"], "y", **attributes)]
    assert work(nodes, inputs, ["y"], [ones("w", *shapes[1])]).flops == flops


def test_a_recurrent_layer():
    steps, batch, size, hidden = 6, 2, 3, 5
    got = work(
        [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)],
        [value("x", [steps, batch, size])],
        ["y"],
        [ones("w", 1, 4 * hidden, size), ones("r", 1, 4 * hidden, hidden)],
    )
    assert got.flops == 2 * steps * batch * 4 * hidden * (size + hidden)


def test_what_stays_inside_is_no_traffic():
    nodes = [node("Relu", ["x"], "a"), node("Exp", ["a"], "y")]
    assert work(nodes, [value("x", [10])], ["y"]) == Work(flops=20, nbytes=80)
    assert work(nodes, [value("x", [10])], ["y", "a"]).nbytes == 120


def test_rates_are_scaled_by_what_was_measured():
    guess = rates("gpu", [])
    small, large = Work(1e9, 0), Work(0, 1e9)
    times = [(small, 3 * guess.seconds(small)), (large, 3 * guess.seconds(large))]
    scaled = rates("gpu", [*times, (small, 100 * guess.seconds(small))])
    assert scaled.seconds(large) == pytest.approx(3 * guess.seconds(large))
    assert rates("unheard of", []) == rates("accelerator", [])
    assert rates("cpu", [(small, 0.0)]) == rates("cpu", [])
