"""Networks over volumes: convolutions of three spatial dimensions, computed slice by slice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper
from sampling import examples

import partita
from partita.errors import PartitaError
from partita_cpu.jit.isa import available

F32 = TensorProto.FLOAT
LEVELS = [level.name for level in available()]


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", request.param)
    return request.param


def model_of(nodes, shape, outputs, weights):
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", F32, shape)],
        [helper.make_tensor_value_info(name, F32, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(model, x, **config):
    """Compares two runs with onnxruntime; returns what computed each node."""
    config["PERF_COUNT"] = True
    request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
    wanted = onnxruntime_results(model, {"x": x})
    for _ in range(2):
        results = request.infer({"x": x})
        for index, expected in enumerate(wanted):
            found = np.asarray(results[index])
            assert found.shape == expected.shape
            scale = max(float(np.abs(expected).max(initial=0)), 1e-6)
            assert float(np.abs(found - expected).max(initial=0)) <= 4e-5 * scale
    return {info.node_name: info.exec_type for info in request.get_profiling_info()}


def weights_of(rng, channels, outputs, kernel, group=1):
    return {
        "w": rng.standard_normal((outputs, channels // group, *kernel)).astype(np.float32),
        "b": rng.standard_normal(outputs).astype(np.float32),
        "w2": rng.standard_normal((5, outputs, 1, 1, 1)).astype(np.float32),
        "scale": rng.standard_normal((1, outputs, 1, 1, 1)).astype(np.float32),
        "shift": rng.standard_normal((outputs, 1, 1, 1)).astype(np.float32),
    }


def network(attrs):
    """A convolution, what may follow it, a sum with what it was, and a pointwise convolution."""
    return [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="first", **attrs),
        helper.make_node("Mul", ["c", "scale"], ["m"]),
        helper.make_node("Add", ["m", "shift"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Add", ["r", "c"], ["s"]),
        helper.make_node("Conv", ["s", "w2"], ["y"], name="last"),
    ]


@st.composite
def convolutions(draw):
    """Sizes of the input, and a convolution's attributes, outputs and kernel."""
    group = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels = group * draw(st.integers(1, 6))
    outputs = group * draw(st.integers(1, 9))
    sizes, kernel, strides, dilations, pads = [], [], [], [], []
    for _ in range(3):
        taps, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        begin, end = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        least = max(1, (taps - 1) * dilation + 1 - begin - end)
        sizes.append(draw(st.integers(least, least + 6)))
        kernel.append(taps)
        strides.append(draw(st.integers(1, 3)))
        dilations.append(dilation)
        pads.append((begin, end))
    attrs = {
        "strides": strides,
        "dilations": dilations,
        "pads": [begin for begin, _ in pads] + [end for _, end in pads],
        "group": group,
    }
    return (draw(st.integers(1, 3)), channels, *sizes), attrs, outputs, kernel


@examples(60)
@given(convolutions(), st.integers(0, 99))
def test_random_convolutions_over_volumes(drawn, seed):
    shape, attrs, outputs, kernel = drawn
    rng = np.random.default_rng(seed)
    weights = weights_of(rng, shape[1], outputs, kernel, attrs["group"])
    model = model_of(network(attrs), shape, ["c", "r", "y"], weights)
    check(model, rng.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_every_level_computes_volumes_by_its_tiles(level, mode):
    rng = np.random.default_rng(0)
    weights = weights_of(rng, 3, 20, (3, 3, 3))
    attrs = {"auto_pad": mode, "strides": [1, 2, 1]}
    model = model_of(network(attrs), (1, 3, 7, 14, 15), ["y"], weights)
    taken = check(model, rng.standard_normal((1, 3, 7, 14, 15)).astype(np.float32))
    native = "portable" not in level
    assert ("blas" not in set(taken.values())) == native


def test_volumes_of_varying_depth():
    rng = np.random.default_rng(0)
    weights = weights_of(rng, 4, 8, (3, 3, 3))
    model = model_of(network({"pads": [1] * 6}), (1, 4, "depth", 9, 9), ["y"], weights)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for depth in (5, 2, 8, 5):
        x = rng.standard_normal((1, 4, depth, 9, 9)).astype(np.float32)
        (expected,) = onnxruntime_results(model, {"x": x})
        found = np.asarray(request.infer({"x": x})[0])
        assert np.abs(found - expected).max() <= 4e-5 * np.abs(expected).max()


def test_a_window_that_does_not_fit_is_refused_by_name():
    weights = weights_of(np.random.default_rng(0), 3, 4, (3, 3, 3))
    model = model_of(network({}), (1, 3, "depth", 9, 9), ["y"], weights)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    with pytest.raises(PartitaError, match="first"):
        request.infer({"x": np.zeros((1, 3, 1, 9, 9), np.float32)})
