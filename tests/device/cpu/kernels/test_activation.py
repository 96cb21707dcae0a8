"""Activations against onnxruntime and closed forms."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from single_op import assert_same, check, normal, run_fused, run_ours

import partita
from partita.lowering import ActivationCode
from partita_cpu.scalar.activations import activate

EDGES = np.array([0, -0.0, 1e-30, -1e-30, 30, -30, 89, -89, 200, -200, np.inf, -np.inf, np.nan])

PLAIN = ["Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish"]
PARAMETRIC = [
    ("LeakyRelu", {}),
    ("LeakyRelu", {"alpha": 0.3}),
    ("Elu", {"alpha": 1.7}),
    ("Selu", {}),
    ("Selu", {"alpha": 2.0, "gamma": 3.0}),
    ("Celu", {"alpha": 0.6}),
    ("ThresholdedRelu", {"alpha": 0.5}),
    ("HardSigmoid", {}),
    ("HardSigmoid", {"alpha": 0.4, "beta": 0.1}),
]


def wide_inputs(dtype=np.float32):
    finite = EDGES[np.isfinite(EDGES)]
    return np.concatenate([normal(1, 1000) * 4, finite]).astype(dtype)


@pytest.mark.parametrize("op_type", PLAIN)
def test_plain(op_type):
    check(op_type, [wide_inputs()], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("op_type", "attributes"), PARAMETRIC)
def test_parametric(op_type, attributes):
    check(op_type, [wide_inputs()], rtol=1e-5, atol=1e-6, **attributes)


@pytest.mark.parametrize("op_type", ["Sigmoid", "Tanh", "Softplus", "Elu", "Relu"])
def test_float64(op_type):
    (y,) = run_ours(op_type, [wide_inputs(np.float64)])
    x = wide_inputs(np.float64)
    expected = {
        "Sigmoid": np.where(x >= 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x))),
        "Tanh": np.tanh(x),
        "Softplus": np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        "Elu": np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
        "Relu": np.maximum(x, 0),
    }[op_type]
    np.testing.assert_allclose(y, expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Tanh", "Softplus", "Gelu", "Mish"])
def test_infinities_and_nan(op_type):
    (y,) = run_ours(op_type, [np.array([np.inf, np.nan], np.float32)])
    np.testing.assert_array_equal(y, [1 if op_type in ("Sigmoid", "Tanh") else np.inf, np.nan])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    check("Gelu", [wide_inputs()], rtol=1e-5, atol=1e-6, approximate=approximate)


def test_gelu_is_as_exact_as_float32_allows():
    x = normal(3, 1000) * 3
    (y,) = run_ours("Gelu", [x])
    exact = [v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x.astype(np.float64)]
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=3e-7)


def test_gelu_below_zero_is_exact_to_a_part_of_itself():
    x = np.linspace(-5.5, -1e-3, 100_001).astype(np.float32)
    (y,) = run_ours("Gelu", [x])
    tail = np.array([math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)])
    np.testing.assert_allclose(y, x * tail / 2, rtol=5e-6)


def test_mish():
    x = wide_inputs().astype(np.float64)
    (y,) = run_ours("Mish", [x.astype(np.float32)])
    expected = x * np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_silu_made_by_fusion():
    x = normal(2, 3, 50)
    assert_same(
        run_fused("Silu", [x]), x / (1 + np.exp(-x.astype(np.float64))).astype("f"), 1e-6, 1e-6
    )


def test_quick_gelu():
    check("QuickGelu", [wide_inputs()], domain="com.microsoft", alpha=1.702, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_relu_of_integers(dtype):
    check("Relu", [np.arange(-60, 60, dtype=dtype)], opset=14)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_shrink(dtype):
    x = (
        np.abs(normal(4, 100, dtype=dtype))
        if np.dtype(dtype).kind == "u"
        else normal(4, 100, dtype=dtype)
    )
    check("Shrink", [x], lambd=1.5, bias=0.5)


@pytest.mark.parametrize("slope", [(1,), (5,), (4, 1), (3, 1, 5), (3, 4, 5), ()])
def test_prelu(slope):
    check("PRelu", [normal(5, 3, 4, 5), normal(6, *slope)], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, np.uint8])
@pytest.mark.parametrize("bounds", [(1, 3), (None, 2), (1, None), (None, None)])
def test_clip(dtype, bounds):
    x = np.arange(0, 60).reshape(3, 20).astype(dtype)
    limits = [None if bound is None else np.array(bound, dtype) for bound in bounds]
    while limits and limits[-1] is None:
        limits.pop()
    check("Clip", [x, *limits], opset=13)


def test_clip_of_nan_and_crossed_bounds():
    x = np.array([np.nan, -1, 5], np.float32)
    check("Clip", [x, np.array(3, np.float32), np.array(1, np.float32)])


def test_clip_by_attributes():
    check("Clip", [normal(7, 50)], opset=10, min=-0.5, max=0.25)


@pytest.mark.parametrize("given", [{}, {"min": -1.0}, {"max": 1.0}])
@pytest.mark.parametrize("fused", [False, True])
def test_clip_has_limits_where_its_attributes_are_left_out(given, fused):
    """They have defaults, which are finite; in what fuses an activation, too."""
    x = np.array([np.inf, -np.inf, 0.5, np.nan], np.float32).reshape(1, 1, 2, 2)
    w = np.ones((1, 1, 1, 1), np.float32)
    nodes = [helper.make_node("Clip", ["c" if fused else "x"], ["y"], **given)]
    if fused:
        nodes.insert(0, helper.make_node("Conv", ["x", "w"], ["c"]))
    graph = helper.make_graph(
        nodes,
        "limits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        [numpy_helper.from_array(w, "w")] if fused else [],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=7)
    due = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    assert np.isfinite(due).sum() == 3
    for device in ("CPU", "REFERENCE"):
        got = partita.Core().compile_model(proto, device)({"x": x})[0]
        np.testing.assert_array_equal(got, due, err_msg=device)


@pytest.mark.parametrize("code", [code for code in ActivationCode if code])
def test_in_place_activation_of_fused_kernels(code):
    x = normal(8, 200) * 2
    alpha, beta = (-0.5, 0.75) if code is ActivationCode.CLIP else (0.3, 0.6)
    y = x.copy()
    activate(y, int(code), np.float32(alpha), np.float32(beta))
    z = x.astype(np.float64)
    erf = np.vectorize(math.erf)
    sigmoid = 1 / (1 + np.exp(-z))
    expected = {
        "RELU": np.maximum(z, 0),
        "CLIP": np.clip(z, alpha, beta),
        "LEAKY_RELU": np.where(z < 0, alpha * z, z),
        "HARD_SWISH": z * np.clip(z / 6 + 0.5, 0, 1),
        "HARD_SIGMOID": np.clip(alpha * z + beta, 0, 1),
        "SIGMOID": sigmoid,
        "TANH": np.tanh(z),
        "SILU": z * sigmoid,
        "GELU": z / 2 * (1 + erf(z / np.sqrt(2))),
        "GELU_TANH": z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
        "MISH": z * np.tanh(np.log1p(np.exp(z))),
        "ELU": np.where(z < 0, alpha * np.expm1(z), z),
        "SOFTPLUS": np.log1p(np.exp(z)),
    }[code.name]
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6)
