"""DequantizeLinear that a graph spells, as OpenVINO's tools do, is one of levels."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper

import partita

RNG = np.random.default_rng(5)
PRODUCTS = {"multiply_bytes", "convolve_lines", "slide_lines", "slide_bytes", "requantize"}


class Graph:
    """Operations and constants of a graph, by the names of their results."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, kind, *inputs, **attrs):
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        self.nodes.append(helper.make_node(kind, names, [f"v{len(self.nodes)}"], **attrs))
        return self.nodes[-1].output[0]

    def activations(self, scale, zero):
        """``x`` by levels, which become floats, int8 and floats again on the way."""
        q = self.node("QuantizeLinear", "x", np.float32(scale), np.uint8(128 + zero))
        whole = self.node("DequantizeLinear", q, np.float32(1), np.uint8(128))
        floats = self.node("Cast", self.node("Cast", whole, to=3), to=1)
        less = self.node("Sub", floats, self.node("Cast", np.int8(zero), to=1))
        return self.node("Mul", less, np.float32(scale))

    def weights(self, levels, zeros, scales):
        """Constants of int8, which become floats."""
        floats = self.node("Cast", levels, to=1)
        if zeros is not None:
            floats = self.node("Sub", floats, self.node("Cast", zeros, to=1))
        return self.node("Mul", floats, scales)

    def results(self, last, shape):
        """What onnxruntime and Partita make of an input, and by what steps."""
        y = self.node("QuantizeLinear", last, np.float32(0.11), np.uint8(128))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        out = helper.make_tensor_value_info(y, TensorProto.UINT8, None)
        graph = helper.make_graph(self.nodes, "g", [x], [out], self.constants)
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
        compiled = partita.Core().compile_model(model, "CPU")
        request = compiled.create_infer_request()
        (result,) = request.infer(feeds).to_tuple()
        steps = {step.how for step in request.explain_execution().steps}
        return result, onnxruntime_results(model, feeds)[0], steps


def check(result, expected):
    off = np.abs(result.astype(int) - expected)
    assert off.max() <= 1
    assert np.mean(off > 0) < 0.01
    assert expected.std() > 5, "results that say something"


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("bias", ["", "floats", "levels"])
def test_convolutions(zeros, groups, bias):
    """Weights of groups have an axis for these first; a bias is added behind the convolution."""
    g, channels, outputs = Graph(), 32, 32
    shape = (groups, outputs // groups, channels // groups, 3, 3)
    levels = RNG.integers(-127, 128, shape).astype(np.int8)
    scales = RNG.uniform(0.001, 0.01, (*shape[:2], 1, 1, 1)).astype(np.float32)
    w = g.weights(levels, np.zeros_like(scales, np.int8) if zeros else None, scales)
    w = g.node("Reshape", w, np.array([outputs, *shape[2:]]))
    y = g.node("Conv", g.activations(0.02, 3), w, group=groups, pads=[1, 1, 1, 1])
    row = RNG.standard_normal((1, outputs, 1, 1)).astype(np.float32)
    if bias == "floats":
        y = g.node("Add", y, row)
    if bias == "levels":
        levels = g.node("Cast", np.rint(row * 1000).astype(np.int32), to=1)
        y = g.node("Add", y, g.node("Mul", levels, np.float32(0.001)))
    result, expected, steps = g.results(g.node("Relu", y), (1, channels, 20, 20))
    check(result, expected)
    assert steps & PRODUCTS
    assert "dequantize" not in steps


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_products(turned, axis):
    """Scales of columns are those of a product of levels; those of terms are not."""
    g, shape = Graph(), (48, 48)
    scales = RNG.uniform(0.001, 0.01, (48, 1) if axis == 0 else (1, 48)).astype(np.float32)
    w = g.weights(RNG.integers(-127, 128, shape).astype(np.int8), None, scales)
    if turned:
        w = g.node("Transpose", w, perm=[1, 0])
    result, expected, steps = g.results(g.node("MatMul", g.activations(0.02, -9), w), (40, 48))
    check(result, expected)
    assert bool(steps & PRODUCTS) == (turned == (axis == 0))


def test_scales_of_inputs_are_none_of_outputs():
    """Of weights whose axes are alike, a Reshape does not make one the other."""
    g, scales = Graph(), RNG.uniform(0.001, 0.01, (1, 32, 1, 1)).astype(np.float32)
    levels = RNG.integers(-127, 128, (32, 32, 3, 3)).astype(np.int8)
    w = g.node("Reshape", g.weights(levels, None, scales), np.array([32, 32, 3, 3]))
    y = g.node("Conv", g.activations(0.02, 0), w)
    result, expected, steps = g.results(y, (1, 32, 12, 12))
    check(result, expected)
    assert not steps & PRODUCTS


def test_a_scale_that_many_products_make_of_one_number():
    """Each product of a number by itself doubled the time to know it: 30 took hours."""
    levels = np.arange(256, dtype=np.uint8).reshape(32, 8)
    nodes = [helper.make_node("Cast", ["w"], ["f"], to=1)]
    nodes += [helper.make_node("Mul", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(40)]
    nodes += [helper.make_node("Mul", ["f", "s40"], ["m"]), helper.make_node("MatMul", "xm", ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 32])],
        [helper.make_tensor_value_info("y", 1, [2, 8])],
        [numpy_helper.from_array(levels, "w"), numpy_helper.from_array(np.float32(-1), "s0")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.ones((2, 32), np.float32)
    (y,) = partita.Core().compile_model(model, "CPU")({"x": x}).to_tuple()
    np.testing.assert_allclose(y, x @ levels.astype(np.float32), rtol=1e-4)
