"""Networks over sequences: convolutions of one spatial dimension, steps without Python between."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper
from sampling import examples

import partita
from partita_cpu.jit.isa import isa

F32 = TensorProto.FLOAT
LEVELS = [level.name for level in float_levels()]


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", request.param)
    return request.param


def model_of(nodes, inputs, outputs, weights):
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, F32, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, F32, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(model, feeds, **config):
    """Compares two runs with onnxruntime; returns the request and what computed each node."""
    request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
    wanted = onnxruntime_results(model, feeds)
    for _ in range(2):
        results = request.infer(feeds)
        for index, expected in enumerate(wanted):
            found = np.asarray(results[index])
            assert found.shape == expected.shape
            scale = max(float(np.abs(expected).max(initial=0)), 1e-6)
            assert float(np.abs(found - expected).max(initial=0)) <= 4e-5 * scale
    return request


def encoder(rng, batch, channels, length, outputs, kernel, stride, dilation, pads, group):
    """Two convolutions with what may lie between them; the sequence between is an output too."""
    weights = {
        "w1": rng.standard_normal((outputs, channels // group, kernel)).astype(np.float32),
        "b1": rng.standard_normal(outputs).astype(np.float32),
        "w2": rng.standard_normal((7, outputs, 1)).astype(np.float32),
        # Where it cancels what is not negative, rounding is all that is left to compare.
        "shift": np.abs(rng.standard_normal((outputs, 1))).astype(np.float32),
        "scale": rng.standard_normal((1, outputs, 1)).astype(np.float32),
    }
    attrs = {"strides": [stride], "dilations": [dilation], "pads": pads, "group": group}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], "first", **attrs),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Add", ["r", "shift"], ["s"], "add"),
        helper.make_node("Mul", ["s", "scale"], ["m"], "mul"),
        helper.make_node("Conv", ["m", "w2"], ["y"], "second"),
        helper.make_node("MaxPool", ["y"], ["p"], "pool", kernel_shape=[1], strides=[2]),
        helper.make_node("GlobalAveragePool", ["y"], ["g"], "mean"),
        helper.make_node("ReduceMax", ["m"], ["t"], "top", axes=[1]),
    ]
    inputs = {"x": (batch, channels, length)}
    return model_of(nodes, inputs, ["y", "p", "g", "t"], weights)


@examples(25)
@given(data=st.data())
def test_random_convolutions_over_sequences(data):
    group = data.draw(st.sampled_from([1, 1, 2, 4]))
    channels, outputs = (group * data.draw(st.integers(1, 9)) for _ in range(2))
    kernel, dilation = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    reach = (kernel - 1) * dilation + 1
    pads = [data.draw(st.integers(0, reach - 1)) for _ in range(2)]
    length = data.draw(st.integers(max(1, reach - sum(pads)), reach + 60))
    batch, stride = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(0)
    sizes = batch, channels, length, outputs, kernel, stride, dilation, pads, group
    feeds = {"x": rng.standard_normal((batch, channels, length)).astype(np.float32)}
    check(encoder(rng, *sizes), feeds)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_by_their_kernels_whose_taps_lie_apart(rank):
    """Their windows overlap: they were computed as if taps lay side by side."""
    rng = np.random.default_rng(2)
    weights = {
        "w1": rng.standard_normal((4, 3, *[1] * rank)).astype(np.float32),
        "w2": rng.standard_normal((4, 5, *[2] * rank)).astype(np.float32),
    }
    attrs = {"strides": [2] * rank, "dilations": [2] * rank, "pads": [0] * rank + [1] * rank}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first"),
        helper.make_node("ConvTranspose", ["a", "w2"], ["y"], "enlarge", **attrs),
    ]
    x = rng.standard_normal((1, 3, *[4] * rank)).astype(np.float32)
    check(model_of(nodes, {"x": x.shape}, ["y"], weights), {"x": x})


@examples(25)
@given(data=st.data())
def test_random_transposed_convolutions_over_sequences(data):
    """Between two convolutions, so that what is computed with images goes on as that."""
    group = data.draw(st.sampled_from([1, 1, 1, 3]))
    channels, outputs = (group * data.draw(st.integers(1, 9)) for _ in range(2))
    kernel, dilation = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 1, 2]))
    stride, length = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 40))
    attrs = {"strides": [stride], "dilations": [dilation], "group": group}
    whole = (length - 1) * stride + (kernel - 1) * dilation + 1
    match data.draw(st.sampled_from(["pads", "pads", "auto_pad", "output_shape"])):
        case "pads":
            pads = [data.draw(st.integers(0, min(kernel - 1, (whole - 1) // 2))) for _ in "lr"]
            attrs["pads"] = pads
            attrs["output_padding"] = [data.draw(st.integers(0, stride - 1))]
        case "auto_pad":
            attrs["auto_pad"] = "SAME_UPPER" if kernel >= stride else "VALID"
        case _:
            attrs["output_shape"] = [max(1, whole - data.draw(st.integers(0, kernel - 1)))]
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((channels, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((channels, outputs // group, kernel)).astype(np.float32),
        "b2": rng.standard_normal(outputs).astype(np.float32),
        "w3": rng.standard_normal((4, outputs, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1, 1]),
        helper.make_node("ConvTranspose", ["a", "w2", "b2"], ["t"], "enlarge", **attrs),
        helper.make_node("LeakyRelu", ["t"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w3"], ["y"], "last"),
    ]
    shape = data.draw(st.integers(1, 2)), 3, length
    model = model_of(nodes, {"x": shape}, ["t", "y"], weights)
    check(model, {"x": rng.standard_normal(shape).astype(np.float32)})


def test_every_level_enlarges_a_sequence_by_its_kernels(level):
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((32, 16, 8)).astype(np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "grow", strides=[4], pads=[2, 2])
    model = model_of([node], {"x": (1, 32, 70)}, ["y"], weights)
    feeds = {"x": rng.standard_normal((1, 32, 70)).astype(np.float32)}
    request = check(model, feeds, PERF_COUNT=True)
    (info,) = [i for i in request.get_profiling_info() if i.node_name == "grow"]
    assert (info.exec_type == "blas") == (level == "portable")


def test_a_bias_that_is_an_input(level):
    """It has one axis, which is none of a sequence's."""
    rng = np.random.default_rng(4)
    weights = {"w": rng.standard_normal((5, 7, 3)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Neg", ["c"], ["y"], "neg"),
    ]
    shapes = {"x": (2, 7, 31), "b": (5,)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    check(model_of(nodes, shapes, ["y"], weights), feeds)


def test_every_level_computes_a_spectrum(level):
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((34, 1, 64)).astype(np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], "stft", strides=[16])
    model = model_of([node], {"x": (2, 1, 700)}, ["y"], weights)
    feeds = {"x": rng.standard_normal((2, 1, 700)).astype(np.float32)}
    request = check(model, feeds, PERF_COUNT=True)
    (info,) = [i for i in request.get_profiling_info() if i.node_name == "stft"]
    assert (info.exec_type == "blas") == (level == "portable")


def recurrent():
    """Everything a small recurrent model is made of, behind an If on a sampling rate."""
    rng = np.random.default_rng(2)
    weights = {
        "w": rng.standard_normal((12, 1, 8)).astype(np.float32),
        "lw": rng.standard_normal((1, 40, 12)).astype(np.float32) * np.float32(0.3),
        "lr": rng.standard_normal((1, 40, 10)).astype(np.float32) * np.float32(0.3),
        "lb": rng.standard_normal((1, 80)).astype(np.float32),
    }
    ints = {"wide": 16000, "front": [1], "end": [11], "axis": [1], "zero": 0, "one": 1}
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in ints.items()]
    body = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", strides=[4]),
        helper.make_node("Slice", ["c", "front", "end", "axis"], ["half"], "slice"),
        helper.make_node("Concat", ["half", "half"], ["twice"], "concat", axis=1),
        helper.make_node("Slice", ["twice", "front", "last", "axis"], ["taken"], "again"),
        helper.make_node("Transpose", ["taken"], ["steps"], "turn", perm=[2, 0, 1]),
        helper.make_node("Gather", ["state", "zero"], ["h"], "h", axis=0),
        helper.make_node("Gather", ["state", "one"], ["k"], "k", axis=0),
        helper.make_node(
            "LSTM",
            ["steps", "lw", "lr", "lb", "", "h", "k"],
            ["", "hn", "cn"],
            "lstm",
            hidden_size=10,
            clip=2.0,
        ),
        helper.make_node("Concat", ["hn", "cn"], ["inner"], "out", axis=0),
    ]
    constants.append(numpy_helper.from_array(np.array([13]), "last"))
    narrow = [helper.make_node("Identity", ["state0"], ["other"], "same")]
    info = helper.make_tensor_value_info
    then = helper.make_graph(body, "then", [], [info("inner", F32, None)])
    other = helper.make_graph(narrow, "else", [], [info("other", F32, None)])
    nodes = [
        helper.make_node("Squeeze", ["state", "axis"], ["state0"], "state0"),
        helper.make_node("Equal", ["rate", "wide"], ["is wide"], "compare"),
        helper.make_node("If", ["is wide"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            info("x", F32, (1, 1, 60)),
            info("state", F32, (2, 1, 1, 10)),
            info("rate", TensorProto.INT64, ()),
        ],
        [info("y", F32, None)],
        [*(numpy_helper.from_array(a, n) for n, a in weights.items()), *constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_of(rate):
    rng = np.random.default_rng(3)
    return {
        "x": rng.standard_normal((1, 1, 60)).astype(np.float32),
        "state": rng.standard_normal((2, 1, 1, 10)).astype(np.float32),
        "rate": np.array(rate),
    }


def test_a_small_recurrent_model_on_every_level(level):
    for rate in (16000, 8000):
        check(recurrent(), feeds_of(rate))


def test_a_branch_is_rewritten_like_the_graph_around_it():
    request = check(recurrent(), feeds_of(16000), PERF_COUNT=True)
    kinds = {info.node_name: info.exec_type for info in request.get_profiling_info()}
    assert (kinds["if"] == "blas") != isa().native


def test_a_bound_request_notices_that_a_value_changed_in_its_tensor():
    request = partita.Core().compile_model(recurrent(), "CPU").create_infer_request()
    feeds = {name: array.copy() for name, array in feeds_of(16000).items()}
    for name, array in feeds.items():
        request.set_tensor(name, partita.HostTensor(array))
    for rate in (16000, 16000, 8000, 8000, 16000):
        feeds["rate"][...] = rate
        request.infer()
        (wanted,) = onnxruntime_results(recurrent(), feeds)
        found = request.get_output_tensor(0).numpy()
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=4e-6)
