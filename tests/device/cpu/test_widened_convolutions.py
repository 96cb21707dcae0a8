"""Convolutions of 16-bit floats: computed in float32 from one to the next, rounded at the end."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_cpu.passes.precision.widened_convolutions import widen_convolutions

FLOAT, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
NUMPY = {FLOAT: np.float32, HALF: np.float16, BFLOAT: ml_dtypes.bfloat16}
CHANNELS = 12


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * np.float32(0.4)


def network(nodes, shape, weights, kind, outputs=("y",), others=()):
    """A model of one element type; integers and truths among the weights stay what they are."""
    held = {
        name: array.astype(NUMPY[kind]) if array.dtype == np.float32 else array
        for name, array in weights.items()
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, shape), *others],
        [
            helper.make_tensor_value_info(*((name, kind, None) if isinstance(name, str) else name))
            for name in outputs
        ],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def computed(model, feeds, **config):
    request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
    for _ in range(2):  # the first run and one whose calls are bound
        results = [np.array(value) for value in request.infer(feeds).values()]
    return results, request


def gated(rank):
    """A convolution, a gate that pools it, and a convolution of what passed."""
    around = {"pads": [1] * 2 * rank}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["a"], "first", **around),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "mean"),
        helper.make_node("Conv", ["p", "w2"], ["q"], "gate"),
        helper.make_node("Sigmoid", ["q"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["r", "s"], ["m"], "gated"),
        helper.make_node("Add", ["m", "shift"], ["t"], "shifted"),
        helper.make_node("Conv", ["t", "w3"], ["y"], "last", **around),
    ]
    ones = (1,) * rank
    weights = {
        "w1": values(CHANNELS, 5, *(3,) * rank, seed=1),
        "b": values(CHANNELS, seed=2),
        "w2": values(CHANNELS, CHANNELS, *ones, seed=3),
        "shift": values(CHANNELS, *ones, seed=4),
        "w3": values(7, CHANNELS, *(3,) * rank, seed=5),
    }
    return nodes, (2, 5, *(9,) * rank), weights


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", [HALF, BFLOAT])
def test_numbers_are_rounded_once(rank, kind):
    """The same weights in float32, by onnxruntime, rounded at the end: hardly a bit differs."""
    nodes, shape, weights = gated(rank)
    rounded = {
        name: array.astype(NUMPY[kind]).astype(np.float32) for name, array in weights.items()
    }
    x = values(*shape, seed=6).astype(NUMPY[kind])
    wide = network(nodes, shape, rounded, FLOAT)
    (expected,) = onnxruntime_results(wide, {"x": x.astype(np.float32)})
    (found,), _ = computed(network(nodes, shape, weights, kind), {"x": x})
    assert found.dtype == NUMPY[kind]
    same = found.view(np.uint16) == expected.astype(NUMPY[kind]).view(np.uint16)
    assert same.mean() > 0.98
    assert found.astype(np.float32) == pytest.approx(expected, rel=2e-2, abs=1e-3)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_kernels_are_those_of_float32(rank):
    nodes, shape, weights = gated(rank)
    kernels = {}
    for kind in (FLOAT, HALF):
        x = values(*shape).astype(NUMPY[kind])
        _, request = computed(network(nodes, shape, weights, kind), {"x": x}, PERF_COUNT=True)
        kernels[kind] = {i.node_name: i.exec_type for i in request.get_profiling_info()}
    for name in ("first", "gate", "last"):
        assert kernels[HALF][name] == kernels[FLOAT][name]


BETWEEN = {
    "AveragePool": ({"kernel_shape": [2, 2]}, {}),
    "BatchNormalization": (
        {},
        {
            "scale": values(CHANNELS),
            "bias": values(CHANNELS, seed=1),
            "mean": values(CHANNELS, seed=2),
            "var": np.abs(values(CHANNELS, seed=3)) + np.float32(0.1),
        },
    ),
    "Clip": ({}, {"low": np.array(-0.5, np.float32), "high": np.array(0.5, np.float32)}),
    "DepthToSpace": ({"blocksize": 2}, {}),
    "GlobalMaxPool": ({}, {}),
    "InstanceNormalization": ({}, {"scale": values(CHANNELS), "bias": values(CHANNELS, seed=1)}),
    "LeakyRelu": ({"alpha": 0.2}, {}),
    "MaxPool": ({"kernel_shape": [3, 3], "strides": [2, 2]}, {}),
    "Pad": ({}, {"pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "filler": np.array(0.5, np.float32)}),
    "PRelu": ({}, {"slope": values(CHANNELS, 1, 1)}),
    "ReduceMean": ({"axes": [2, 3]}, {}),
    "Reshape": ({}, {"to": np.array([0, 0, 4, -1])}),
    "Resize": ({"mode": "linear"}, {"roi": np.zeros(0, np.float32), "size": None}),
    "Slice": ({}, {"front": np.array([1]), "end": np.array([5]), "axis": np.array([2])}),
    "Softmax": ({"axis": 1}, {}),
    "SpaceToDepth": ({"blocksize": 2}, {}),
    "Tanh": ({}, {}),
    "Transpose": ({"perm": [0, 1, 3, 2]}, {}),
}


@pytest.mark.parametrize("operator", sorted(BETWEEN))
def test_operators_between_two_convolutions(operator):
    attributes, given = BETWEEN[operator]
    inputs, weights = ["a"], {"w": values(CHANNELS, 5, 3, 3, seed=8)}
    for name, array in given.items():
        if name == "size":  # Resize by a size has no scales
            inputs += ["", "size"]
            weights["size"] = np.array([1, CHANNELS, 9, 5])
        else:
            inputs.append(name)
            weights[name] = array
    channels = {"DepthToSpace": CHANNELS // 4, "SpaceToDepth": CHANNELS * 4}.get(operator, CHANNELS)
    weights["w2"] = values(6, channels, 1, 1, seed=9)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        helper.make_node(operator, inputs, ["c"], "between", **attributes),
        helper.make_node("Conv", ["c", "w2"], ["y"], "second"),
    ]
    model = network(nodes, (1, 5, 10, 8), weights, HALF, ("y", "c"))
    feeds = {"x": values(1, 5, 10, 8, seed=3).astype(np.float16)}
    found, request = computed(model, feeds, PERF_COUNT=True)
    for got, want in zip(found, onnxruntime_results(model, feeds), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), rtol=4e-3, atol=4e-3
        )
    executed = {info.node_name for info in request.get_profiling_info()}
    assert {"first", "between", "second"} <= executed


def test_other_nodes_read_rounded_numbers():
    """Indices, a comparison, a product, a body and the caller read what a convolution makes."""
    body = helper.make_graph(
        [
            helper.make_node("Conv", ["a", "w2"], ["inner"], "in body"),
            helper.make_node("ReduceMax", ["inner"], ["out"], axes=[1], keepdims=0),
        ],
        "body",
        [],
        [helper.make_tensor_value_info("out", HALF, None)],
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        helper.make_node("ArgMax", ["a"], ["best"], axis=1),
        helper.make_node("Greater", ["a", "half"], ["large"]),
        helper.make_node("Where", ["large", "a", "half"], ["kept"]),
        helper.make_node("MatMul", ["kept", "matrix"], ["product"]),
        helper.make_node("If", ["yes"], ["branch"], then_branch=body, else_branch=body),
        helper.make_node("Cast", ["a"], ["wide"], to=FLOAT),
    ]
    weights = {
        "w": values(CHANNELS, 5, 3, 3, seed=8),
        "w2": values(4, CHANNELS, 1, 1, seed=9),
        "half": np.array(0.25, np.float32),
        "matrix": values(6, 3, seed=10),
    }
    outputs = [
        "a",
        ("best", TensorProto.INT64, None),
        "product",
        "branch",
        ("wide", FLOAT, None),
    ]
    others = [helper.make_tensor_value_info("yes", TensorProto.BOOL, [])]
    model = network(nodes, (1, 5, 10, 8), weights, HALF, outputs, others)
    feeds = {"x": values(1, 5, 10, 8, seed=3).astype(np.float16), "yes": np.array(True)}
    found, _ = computed(model, feeds)
    a, best, product, branch, wide = onnxruntime_results(model, feeds)
    for got, want in zip(found, (a, best, product, branch, wide), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
    for got, want in ((found[0], a), (found[2], product), (found[3], branch)):
        np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), rtol=4e-3, atol=4e-3
        )
    np.testing.assert_array_equal(found[1], found[0].argmax(axis=1)[:, None])
    np.testing.assert_array_equal(found[4].astype(np.float16), found[0])


def test_operators_that_a_converter_leaves_in_float32():
    """A Resize to another image's size, with a Cast on either side: nothing is rounded or turned.

    Two Casts with nothing in between round what they are given.
    """
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], "input", to=HALF),
        helper.make_node("Conv", ["h", "w1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["a"], ["sizes"], "shape"),
        helper.make_node("Cast", ["p"], ["wide"], "before", to=FLOAT),
        helper.make_node("Resize", ["wide", "", "", "sizes"], ["r"], "resize", mode="linear"),
        helper.make_node("Cast", ["r"], ["narrow"], "behind", to=HALF),
        helper.make_node("Concat", ["narrow", "a"], ["c"], "both", axis=1),
        helper.make_node("Conv", ["c", "w2"], ["d"], "last"),
        helper.make_node("Cast", ["d"], ["y"], "output", to=FLOAT),
        helper.make_node("Cast", ["h"], ["rounded"], "back", to=FLOAT),
    ]
    weights = {"w1": values(CHANNELS, 5, 3, 3, seed=1), "w2": values(7, 2 * CHANNELS, 1, 1, seed=2)}
    outputs = [("y", FLOAT, None), ("rounded", FLOAT, None)]
    model = network(nodes, (1, 5, 10, 8), weights, HALF, outputs)
    model.graph.input[0].type.tensor_type.elem_type = FLOAT
    x = values(1, 5, 10, 8, seed=3)
    (found, rounded), request = computed(
        model, {"x": x}, PERF_COUNT=True, EXECUTION_MODE_HINT="ACCURACY"
    )
    np.testing.assert_array_equal(rounded, x.astype(np.float16).astype(np.float32))
    narrow = {name: array.astype(np.float16).astype(np.float32) for name, array in weights.items()}
    for node in nodes[:-1]:
        if node.op_type == "Cast":
            node.CopyFrom(helper.make_node("Identity", node.input, node.output))
    twin = network(nodes[:-1], x.shape, narrow, FLOAT)
    (expected,) = onnxruntime_results(twin, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    turned = [i.node_name for i in request.get_profiling_info() if i.node_type == "Permute"]
    assert turned == ["permute first/layout", "permute output/layout"]


def test_sizes_that_vary():
    nodes, _, weights = gated(2)
    model = network(nodes, (None, 5, None, None), weights, HALF)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for batch, height, width in ((1, 9, 9), (2, 17, 5), (1, 4, 30), (2, 17, 5)):
        feeds = {"x": values(batch, 5, height, width).astype(np.float16)}
        (want,) = onnxruntime_results(model, feeds)
        got = np.asarray(request.infer(feeds)[0])
        np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), rtol=4e-3, atol=4e-3
        )


def test_graphs_without_convolutions_of_halves_stay_as_they_are():
    from partita.lowering import lower_proto

    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    for kind, nodes, weights in (
        (HALF, [node], {"w": values(5, 3)}),
        (FLOAT, [helper.make_node("Conv", ["x", "w"], ["y"])], {"w": values(3, 4, 1, 1)}),
    ):
        graph = lower_proto(network(nodes, (2, 4, 5, 5), weights, kind))
        before = list(graph.nodes)
        widen_convolutions(graph)
        assert [node.op_type for node in graph.nodes] == [node.op_type for node in before]
