"""Every fusion pattern: it is found, computes what onnxruntime computes, and knows its limits.

The fused graph is computed by ONNX's reference evaluator; fused nodes by the closed form that their
definition gives.
"""

import math
import re

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from partita.lowering import (
    NO_ACTIVATION,
    Activation,
    ActivationCode,
    Node,
    Value,
    fuse,
    fuse_for_shapes,
    lower_proto,
    reference_fold,
)

RNG = np.random.default_rng(7)


def erf(x):
    return np.vectorize(math.erf)(x)


FUNCTIONS = {
    ActivationCode.NONE: lambda x, a, b: x,
    ActivationCode.RELU: lambda x, a, b: np.maximum(x, 0),
    ActivationCode.CLIP: lambda x, a, b: np.clip(x, a, b),
    ActivationCode.LEAKY_RELU: lambda x, a, b: np.where(x >= 0, x, a * x),
    ActivationCode.HARD_SWISH: lambda x, a, b: x * np.clip(x / 6 + 0.5, 0, 1),
    ActivationCode.HARD_SIGMOID: lambda x, a, b: np.clip(a * x + b, 0, 1),
    ActivationCode.SIGMOID: lambda x, a, b: 1 / (1 + np.exp(-x)),
    ActivationCode.TANH: lambda x, a, b: np.tanh(x),
    ActivationCode.SILU: lambda x, a, b: x / (1 + np.exp(-x)),
    ActivationCode.GELU: lambda x, a, b: x / 2 * (1 + erf(x / math.sqrt(2))),
    ActivationCode.GELU_TANH: lambda x, a, b: (
        x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    ActivationCode.MISH: lambda x, a, b: x * np.tanh(np.log1p(np.exp(x))),
    ActivationCode.ELU: lambda x, a, b: np.where(x >= 0, x, a * np.expm1(x)),
    ActivationCode.SOFTPLUS: lambda x, a, b: np.log1p(np.exp(x)),
}


def convolve(op_type, attrs, x, w, bias):
    """Group by group, as the evaluator's transposed convolution fails for more than one."""
    groups = attrs.get("group", 1) if op_type == "ConvTranspose" else 1
    node = Node(op_type, [Value()] * 2, [Value()], attrs, version=11)
    node.attrs = {**attrs, "group": attrs.get("group", 1) // groups}
    parts = zip(np.split(x, groups, axis=1), np.split(w, groups, axis=0), strict=True)
    result = np.concatenate([reference_fold(node, pair)[0] for pair in parts], axis=1)
    return result if bias is None else result + bias.reshape(-1, *(1,) * (w.ndim - 2))


def normalized_channels(x, scale, bias, epsilon):
    """Axis 1 of a tensor."""
    wide, ones = x.astype(np.float64), (1,) * (x.ndim - 2)
    deviation = np.sqrt(wide.var(1, keepdims=True) + epsilon)
    result = (wide - wide.mean(1, keepdims=True)) / deviation
    return (result * scale.reshape(-1, *ones) + bias.reshape(-1, *ones)).astype(x.dtype)


def compute(node, arrays):
    """One node of a fused graph."""
    if node.domain != "partita":
        return reference_fold(node, arrays)
    if node.op_type == "Silu":
        return [FUNCTIONS[ActivationCode.SILU](arrays[0], 0, 0)]
    if node.op_type == "ChannelNormalization":
        return [normalized_channels(*arrays, node.attrs["epsilon"])]
    x, w, bias, residual = arrays
    if node.op_type == "MatMul":
        result = x.astype(np.float64) @ w
        result = result if bias is None else result + bias
    else:
        attrs = {key: value for key, value in node.attrs.items() if key != "activation"}
        result = convolve(node.op_type, attrs, x, w, bias)
    result = result if residual is None else result + residual
    activation = node.attrs["activation"] or NO_ACTIVATION
    function = FUNCTIONS[activation.code]
    return [function(result, activation.alpha, activation.beta).astype(x.dtype)]


def evaluate(graph, feeds):
    known = {value: feeds[value.name] for value in graph.inputs}

    def array(value):
        return None if value is None else value.const if value.const is not None else known[value]

    for node in graph.nodes:
        results = compute(node, [array(value) for value in node.inputs])
        for value, result in zip(node.outputs, results, strict=False):
            known[value] = result
    return [array(value) for value in graph.outputs]


def run_ort(model, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def check(model, expected, **feeds):
    """Fuses, compares kinds of nodes (``expected``, a text) and numbers; returns the graph."""
    wanted = run_ort(model, feeds)
    graph = lower_proto(model)
    every = {node.name for node in graph.nodes}
    fuse(graph)
    assert " ".join(node.kind for node in graph.nodes) == expected
    assert all(set(node.origins) <= every for node in graph.nodes)
    for found, want in zip(evaluate(graph, feeds), wanted, strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    return graph


def model_of(text, weights=None, opset=18, ir_version=10):
    """A model from text; ``weights`` become initializers."""
    model = parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n' + text)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return infer(model)


def infer(model):
    from onnx import shape_inference

    return shape_inference.infer_shapes(model)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


X = normal(2, 6, 9, 8)
CONV = {"w": normal(4, 6, 3, 3), "b": normal(4)}
CONV_INPUT = "g (float[2, 6, 9, 8] x)"
BATCH_NORM = {"s": normal(4), "t": normal(4), "m": normal(4), "v": np.abs(normal(4)) + 0.5}


@pytest.mark.parametrize("bias", ["", ", b"])
def test_batch_normalization_folds_into_a_convolution(bias):
    text = f"{CONV_INPUT} => (float[2, 4, H, W] y) {{ c = Conv(x, w{bias}) "
    model = model_of(
        text + "y = BatchNormalization <epsilon = 0.01> (c, s, t, m, v) }", CONV | BATCH_NORM
    )
    graph = check(model, "partita::Conv", x=X)
    assert graph.nodes[0].attrs["activation"] is None
    assert len(graph.nodes[0].origins) == 2


@pytest.mark.parametrize("group", [1, 2])
def test_batch_normalization_folds_into_a_transposed_convolution(group):
    channels = 4 // group
    weights = BATCH_NORM | {"w": normal(6, channels, 3, 3)}
    model = model_of(
        CONV_INPUT + f" => (float[2, 4, H, W] y) {{ c = ConvTranspose <group = {group}> (x, w) "
        "n = BatchNormalization(c, s, t, m, v) y = Relu(n) }",
        weights,
    )
    check(model, "partita::ConvTranspose", x=X)


@pytest.mark.parametrize(
    ("chain", "weights"),
    [
        ("y = Add(c, k)", {"k": normal(4, 1, 1)}),
        ("y = Add(k, c)", {"k": normal(1, 4, 1, 1)}),
        ("y = Sum(k, c)", {"k": normal(1, 4, 1, 1)}),
        ("y = Sub(c, k)", {"k": normal(1, 4, 1, 1)}),
        ("y = Sub(k, c)", {"k": normal(4, 1, 1)}),
        ("y = Mul(c, k)", {"k": normal(4, 1, 1)}),
        ("y = Div(c, k)", {"k": normal(4, 1, 1) + 3}),
        ("y = Mul(c, k)", {"k": np.float32(0.25)}),
        ("d = Mul(c, k) e = Add(d, l) y = Relu(e)", {"k": normal(4, 1, 1), "l": normal(4, 1, 1)}),
    ],
)
def test_constants_per_channel_fold_into_a_convolution(chain, weights):
    text = f"{CONV_INPUT} => (float[2, 4, H, W] y) {{ c = Conv(x, w, b) {chain} }}"
    check(model_of(text, CONV | weights), "partita::Conv", x=X)


@pytest.mark.parametrize("chain", ["y = Mul(c, k)", "r = Relu(c) y = Mul(r, k)"])
def test_factors_that_weights_cannot_hold_stay(chain):
    """Weights would be infinity, where results are none."""
    text = f"{CONV_INPUT} => (float[2, 4, H, W] y) {{ c = Conv(x, w, b) {chain} }}"
    x, k = np.abs(X) * np.float32(1e-25), {"k": np.float32(1e25)}
    kept = "Conv Mul" if "Relu" not in chain else "partita::Conv Mul"
    large = {"w": np.abs(CONV["w"]) * np.float32(1e20), "b": np.zeros(4, np.float32)}
    check(model_of(text, large | k), kept, x=x)


@pytest.mark.parametrize(
    ("chain", "weights", "expected"),
    [
        # One number per column, not per channel.
        ("y = Add(c, k)", {"k": normal(6)}, "Conv Add"),
        # Widens the result by a dimension.
        ("y = Add(c, k)", {"k": normal(2, 1, 4, 1, 1)}, "Conv Add"),
        ("y = Div(k, c)", {"k": normal(4, 1, 1)}, "Conv Div"),
        ("y = Mul(c, c)", {}, "Conv Mul"),
    ],
)
def test_what_is_not_per_channel_stays(chain, weights, expected):
    text = f"{CONV_INPUT} => (float[A, B, C, D] y) {{ c = Conv(x, w, b) {chain} }}"
    if weights and weights["k"].ndim == 5:
        text = text.replace("[A, B, C, D]", "[A, B, C, D, E]")
    check(model_of(text, CONV | weights), expected, x=X)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("p = Pad(x, hw) y = Conv(p, w, b)", "Conv"),
        ("p = Pad(x, hw, nought) y = Conv <pads = [1, 0, 0, 1]> (p, w, b)", "Conv"),
        ('p = Pad(x, hw) c = Conv <auto_pad = "VALID"> (p, w, b) y = Relu(c)', "partita::Conv"),
        ("p = Pad(x, hw) c = Conv(p, w, b) d = Conv(p, w) y = Mul(c, d)", "Conv Conv Mul"),
        (
            "p = Pad(x, hw) c = Conv(p, w, b) d = ReduceMax(p) y = Div(c, d)",
            "Pad Conv ReduceMax Div",
        ),
        ('p = Pad(x, hw) y = Conv <auto_pad = "SAME_UPPER"> (p, w, b)', "Pad Conv"),
        ("p = Pad(x, hw, one) y = Conv(p, w, b)", "Pad Conv"),
        ('p = Pad <mode = "edge"> (x, hw) y = Conv(p, w, b)', "Pad Conv"),
        ("p = Pad(x, batch) y = Conv(p, w, b)", "Pad Conv"),
    ],
)
def test_zero_padding_moves_into_the_convolution(chain, expected):
    weights = CONV | {
        "hw": np.array([0, 0, 1, 2, 0, 0, 0, 1]),
        "batch": np.array([1, 0, 0, 0, 0, 0, 0, 0]),
        "nought": np.float32(0),
        "one": np.float32(1),
    }
    check(model_of(f"{CONV_INPUT} => (float[A, B, C, D] y) {{ {chain} }}", weights), expected, x=X)


def test_zero_padding_that_concrete_shapes_show_moves_into_what_was_fused():
    text = """g (float[N, 6, 9, 8] x, int64[8] pads) => (float[A, B, C, D] y) {
        p = Pad(x, pads) c = Conv <pads = [1, 0, 0, 1]> (p, w, b) y = Relu(c)
    }"""
    model, pads = model_of(text, CONV), np.array([0, 0, 1, 2, 0, 0, 0, 1])
    graph = check(model, "Pad partita::Conv", x=X, pads=pads)
    graph.nodes[0].inputs[1] = Value.constant(pads)
    fuse_for_shapes(graph, {})
    assert [node.kind for node in graph.nodes] == ["partita::Conv"]
    assert graph.nodes[0].attrs["pads"] == [2, 2, 0, 2]
    assert len(graph.nodes[0].origins) == 3
    (wanted,) = run_ort(model, {"x": X, "pads": pads})
    found = evaluate(graph, {"x": X, "pads": pads})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


SHUFFLE = 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (c)'


@pytest.mark.parametrize(
    ("chain", "expected", "mode"),
    [
        ("c = Conv(x, w8, b8) " + SHUFFLE, "Conv DepthToSpace", "DCR"),
        ("c = Conv(x, w8) " + SHUFFLE, "Conv DepthToSpace", "DCR"),
        ("d = Conv(x, w8, b8) c = Relu(d) " + SHUFFLE, "partita::Conv DepthToSpace", "DCR"),
        ("c = Conv(x, w8, b8) " + SHUFFLE.replace("CRD", "DCR"), "Conv DepthToSpace", "DCR"),
        ("f = Cos(x) d = Conv(x, w8) e = Conv(f, w8) c = Add(d, e) " + SHUFFLE,
         "Cos Conv partita::Conv DepthToSpace", "CRD"),
        ("c = Conv <group = 2> (x, w8g) " + SHUFFLE, "Conv DepthToSpace", "CRD"),
        ("d = Conv(x, w8) c = Cos(d) " + SHUFFLE, "Conv Cos DepthToSpace", "CRD"),
        ("c = Conv(x, w8) z = DepthToSpace <blocksize = 2, mode = \"CRD\"> (c) "
         "m = ReduceMax(c) y = Add(z, m)", "Conv DepthToSpace ReduceMax Add", "CRD"),
    ],
)  # fmt: skip
def test_channels_in_the_order_of_the_pixels_that_they_become(chain, expected, mode):
    weights = {"w8": normal(8, 6, 3, 3), "b8": normal(8), "w8g": normal(8, 3, 3, 3)}
    text = f"{CONV_INPUT} => (float[A, B, C, D] y) {{ {chain} }}"
    graph = check(model_of(text, weights), expected, x=X)
    (shuffle,) = (node for node in graph.nodes if node.kind == "DepthToSpace")
    assert shuffle.attrs["mode"] == mode


def test_a_pad_that_crops_stays():
    text = f"{CONV_INPUT} => (float[A, B, C, D] y) {{ p = Pad(x, crop) y = Conv(p, w, b) }}"
    graph = lower_proto(model_of(text, CONV | {"crop": np.array([0, 0, -1, 0, 0, 0, 0, 0])}))
    fuse(graph)
    assert [node.kind for node in graph.nodes] == ["Pad", "Conv"]


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("m = Mul(n, k) y = Add(m, l)", "BatchNormalization"),
        ("m = Add(l, n) p = Mul(m, k) y = Relu(p)", "BatchNormalization Relu"),
        ("m = Mul(n, row) y = Add(m, l)", "BatchNormalization Mul Add"),
        ("m = Mul(n, n) y = Add(m, l)", "BatchNormalization Mul Add"),
    ],
)
def test_constants_per_channel_fold_into_batch_normalization(chain, expected):
    weights = BATCH_NORM | {"k": normal(4, 1, 1), "l": normal(1, 4, 1, 1), "row": normal(6)}
    text = f"""g (float[2, 4, 5, 6] x) => (float[2, 4, 5, 6] y) {{
        n = BatchNormalization(x, s, t, m0, v) {chain}
    }}"""
    weights["m0"] = weights.pop("m")
    check(model_of(text, weights), expected, x=normal(2, 4, 5, 6))


@pytest.mark.parametrize(
    ("x", "expected"), [((5, 6), "partita::MatMul"), ((2, 4, 6), "MatMul BatchNormalization")]
)
def test_batch_normalization_folds_into_a_product_whose_columns_are_the_channels(x, expected):
    """Of three dimensions the second are channels, though the last may be as many."""
    sizes = ", ".join(map(str, x))
    text = f"""g (float[{sizes}] x) => (float[{sizes[:-1]}4] y) {{
        c = MatMul(x, w) y = BatchNormalization <epsilon = 0.01> (c, s, t, m, v)
    }}"""
    check(model_of(text, {"w": normal(6, 4)} | BATCH_NORM), expected, x=normal(*x))


ACTIVATIONS = {
    "Relu(c)": Activation(ActivationCode.RELU),
    "Clip(c, low, high)": Activation(ActivationCode.CLIP, -0.5, 1.5),
    "Clip(c, , high)": Activation(ActivationCode.CLIP, -math.inf, 1.5),
    "LeakyRelu <alpha = 0.2> (c)": Activation(ActivationCode.LEAKY_RELU, np.float32(0.2)),
    "HardSwish(c)": Activation(ActivationCode.HARD_SWISH),
    "HardSigmoid(c)": Activation(ActivationCode.HARD_SIGMOID, np.float32(0.2), 0.5),
    "Sigmoid(c)": Activation(ActivationCode.SIGMOID),
    "Tanh(c)": Activation(ActivationCode.TANH),
    "Mish(c)": Activation(ActivationCode.MISH),
    "Elu(c)": Activation(ActivationCode.ELU, 1.0),
    "Softplus(c)": Activation(ActivationCode.SOFTPLUS),
    "Gelu(c)": Activation(ActivationCode.GELU),
}


@pytest.mark.parametrize("call", ACTIVATIONS)
def test_activations_move_into_the_convolution(call):
    text = f"{CONV_INPUT} => (float[2, 4, H, W] y) {{ c = Conv(x, w, b) y = {call} }}"
    limits = {"low": np.float32(-0.5), "high": np.float32(1.5)}
    graph = check(model_of(text, CONV | limits, opset=20), "partita::Conv", x=X)
    assert graph.nodes[0].attrs["activation"] == ACTIVATIONS[call]
    assert graph.nodes[0].attrs["activation"].kind == call.partition("(")[0].split()[0]


def test_clip_with_limits_as_attributes():
    text = f"{CONV_INPUT} => (float[2, 4, H, W] y) {{ c = Conv(x, w, b) "
    model = model_of(text + "y = Clip <min = 0.0, max = 6.0> (c) }", CONV, opset=9, ir_version=4)
    graph = check(model, "partita::Conv", x=X)
    assert graph.nodes[0].attrs["activation"] == Activation(ActivationCode.CLIP, 0.0, 6.0)


@pytest.mark.parametrize(
    ("chain", "expected", "low", "high"),
    [
        ("d = Relu(c) e = Mul(d, two) y = Add(e, three)", "partita::Conv", 3, math.inf),
        ("d = Relu(c) e = Mul(two, d) y = Sub(three, e)", "partita::Conv", -math.inf, 3),
        ("d = Clip(c, low, high) e = Div(d, two) y = Sub(e, three)", "partita::Conv", -3.25, -2.25),
        ("d = Relu(c) y = Sum(three, d)", "partita::Conv", 3, math.inf),
        ("d = Relu(c) e = Mul(d, two) y = Tanh(e)", "partita::Conv Tanh", 0, math.inf),
        ("d = Relu(c) y = Mul(d, k)", "partita::Conv Mul", None, None),
        ("d = Relu(c) y = Div(two, d)", "partita::Conv Div", None, None),
        ("d = Relu(c) y = Mul(d, none)", "partita::Conv Mul", None, None),
        ("d = Relu(c) y = Mul(d, endless)", "partita::Conv Mul", None, None),
        ("d = Sigmoid(c) y = Mul(d, two)", "partita::Conv Mul", None, None),
        ("d = Relu(c) y = Mul(d, d)", "partita::Conv Mul", None, None),
    ],
)
def test_factors_and_summands_behind_bounds_move_the_bounds(chain, expected, low, high):
    """As in HGNetV2, which has a number of each behind every convolution's Relu."""
    weights = {
        "two": np.float32([2]),
        "three": np.float32(3),
        "low": np.float32(-0.5),
        "high": np.float32(1.5),
        "none": np.float32(0),
        "endless": np.float32(np.inf),
        "k": normal(4, 1, 1),
    }
    text = f"{CONV_INPUT} => (float[2, 4, H, W] y) {{ c = Conv(x, w, b) {chain} }}"
    with np.errstate(all="ignore"):
        graph = check(model_of(text, CONV | weights), expected, x=X)
    if low is not None:
        activation = graph.nodes[0].attrs["activation"]
        held = activation.code is ActivationCode.CLIP
        assert (activation.alpha, activation.beta) == (low, high) and held


def test_a_factor_behind_a_sum_with_another_tensor_stays():
    text = """g (float[2, 6, 9, 8] x, float[2, 4, 7, 6] r) => (float[2, 4, 7, 6] y) {
        c = Conv(x, w, b)
        a = Add(r, c)
        d = Relu(a)
        y = Mul(d, k)
    }"""
    model = model_of(text, CONV | {"k": np.float32(2)})
    check(model, "partita::Conv Mul", x=X, r=normal(2, 4, 7, 6))


def test_a_negative_factor_swaps_bounds_and_infinities_stay():
    text = (
        f"{CONV_INPUT} => (float[2, 4, H, W] y) {{ c = Conv(x, w, b) d = Relu(c) y = Mul(d, k) }}"
    )
    x = X.copy()
    x[0, 0, 4, 4], x[1, 2, 3, 3] = np.inf, np.nan
    model = model_of(text, CONV | {"k": np.float32(-0.5)})
    with np.errstate(all="ignore"):
        graph = check(model, "partita::Conv", x=x)
    assert graph.nodes[0].attrs["activation"] == Activation(ActivationCode.CLIP, -math.inf, 0.0)


def test_a_residual_and_the_activation_after_it():
    text = """g (float[2, 6, 9, 8] x, float[2, 4, 7, 6] r) => (float[2, 4, 7, 6] y) {
        c = Conv(x, w, b)
        n = BatchNormalization(c, s, t, m, v)
        a = Add(r, n)
        y = Relu(a)
    }"""
    r = normal(2, 4, 7, 6)
    graph = check(model_of(text, CONV | BATCH_NORM), "partita::Conv", x=X, r=r)
    assert graph.nodes[0].inputs[3].name == "r"


def test_a_residual_that_might_broadcast_stays_an_add():
    text = """g (float[N, 6, 9, 8] x, float[M, 4, 7, 6] r) => (float[K, 4, 7, 6] y) {
        c = Conv(x, w, b)
        y = Add(r, c)
    }"""
    check(model_of(text, CONV), "Conv Add", x=X, r=normal(1, 4, 7, 6))


def test_a_residual_that_concrete_shapes_show_to_be_one():
    text = """g (float[N, 6, 9, 8] x, float[M, 4, 7, 6] r) => (float[K, 4, 7, 6] y) {
        c = Conv(x, w, b)
        n = BatchNormalization(c, s, t, m, v)
        a = Add(r, n)
        y = Relu(a)
    }"""
    model = model_of(text, CONV | BATCH_NORM)
    r = normal(2, 4, 7, 6)
    graph = check(model, "partita::Conv Add Relu", x=X, r=r)
    known = {graph.nodes[0].outputs[0]: r.shape, graph.inputs[1]: r.shape}
    fuse_for_shapes(graph, known | {graph.inputs[1]: (1, 4, 7, 6)})
    assert [node.kind for node in graph.nodes] == ["partita::Conv", "Add", "Relu"]
    fuse_for_shapes(graph, known)
    assert [node.kind for node in graph.nodes] == ["partita::Conv"]
    assert graph.nodes[0].attrs["activation"] == Activation(ActivationCode.RELU)
    assert len(graph.nodes[0].origins) == 4
    (wanted,) = run_ort(model, {"x": X, "r": r})
    np.testing.assert_allclose(evaluate(graph, {"x": X, "r": r})[0], wanted, rtol=1e-4, atol=1e-5)


def test_a_residual_of_symbolic_batch():
    text = """g (float[N, 4, 9, 8] x) => (float[N, 4, 9, 8] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        a = Add(c, x)
        y = Sigmoid(a)
    }"""
    weights = {"w": normal(4, 4, 3, 3), "b": normal(4)}
    check(model_of(text, weights), "partita::Conv", x=normal(3, 4, 9, 8))


@pytest.mark.parametrize("seen", ["n", "c"])
def test_an_intermediate_that_is_an_output_is_not_fused_away(seen):
    text = f"""{CONV_INPUT} => (float[2, 4, 7, 6] y, float[2, 4, 7, 6] {seen}) {{
        c = Conv(x, w, b)
        n = BatchNormalization(c, s, t, m, v)
        y = Relu(n)
    }}"""
    expected = {"n": "partita::Conv Relu", "c": "Conv BatchNormalization Relu"}[seen]
    check(model_of(text, CONV | BATCH_NORM), expected, x=X)


def test_an_intermediate_with_two_readers_is_not_fused_away():
    text = f"""{CONV_INPUT} => (float[2, 4, 7, 6] y, float[2, 4, 7, 6] z) {{
        c = Conv(x, w, b)
        y = Relu(c)
        z = Tanh(c)
    }}"""
    check(model_of(text, CONV), "Conv Relu Tanh", x=X)


def test_an_intermediate_that_a_body_reads_is_not_fused_away():
    text = f"""{CONV_INPUT} => (float[2, 4, 7, 6] y, float[2, 4, 7, 6] z) {{
        c = Conv(x, w, b)
        y = Relu(c)
        z = If (yes) <
            then_branch = t () => (float[2, 4, 7, 6] p) {{ p = Tanh(c) }},
            else_branch = e () => (float[2, 4, 7, 6] q) {{ q = Relu(c) }}
        >
    }}"""
    graph = lower_proto(model_of(text, CONV | {"yes": np.array(True)}))
    fuse(graph)
    assert [node.kind for node in graph.nodes] == ["Conv", "Relu", "If"]


def test_patterns_inside_bodies_are_fused():
    text = """g (float[2, 3] x, bool c) => (float[2, 3] y) {
        y = If (c) <
            then_branch = t () => (float[2, 3] p) { s = Sigmoid(x)  p = Mul(x, s) },
            else_branch = e () => (float[2, 3] q) { q = Relu(x) }
        >
    }"""
    graph = lower_proto(model_of(text))
    fuse(graph)
    assert [node.kind for node in graph.all_nodes()] == ["If", "partita::Silu", "Relu"]


@pytest.mark.parametrize(
    ("attrs", "shape"),
    [({}, (5, 3)), ({"transB": 1}, (3, 5)), ({"alpha": 0.5, "beta": 2.0, "transB": 1}, (3, 5))],
)
@pytest.mark.parametrize("bias", [(3,), (1, 3), (1,), (), None])
def test_gemm_with_constant_weights_becomes_a_product(attrs, shape, bias):
    weights = {"w": normal(*shape)}
    if bias is not None:
        weights["b"] = normal(*bias)
    node = helper.make_node("Gemm", ["x", *weights], ["g"], **attrs)
    relu = helper.make_node("Relu", ["g"], ["y"])
    graph = helper.make_graph(
        [node, relu],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    check(infer(model), "partita::MatMul", x=normal(4, 5))


@pytest.mark.parametrize(
    "chain",
    [
        "y = Gemm <transA = 1> (z, w)",
        "y = Gemm(x, w, r)",
        "y = Gemm(x, x2)",
        "y = Gemm(x, w, per_row)",
    ],
)
def test_gemm_of_another_form_stays(chain):
    text = (
        "g (float[5, 5] x, float[5, 5] z, float[5, 5] x2, float[5, 5] r) => (float[5, 5] y) "
        f"{{ {chain} }}"
    )
    feeds = {name: normal(5, 5) for name in ("x", "z", "x2", "r")}
    check(model_of(text, {"w": normal(5, 5), "per_row": normal(5, 1)}), "Gemm", **feeds)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("m = MatMul(x, w) y = Add(m, b)", "partita::MatMul"),
        ("m = MatMul(x, w) n = Add(b, m) y = Tanh(n)", "partita::MatMul"),
        ("m = MatMul(x, w) n = Add(m, b) o = Add(r, n) y = Relu(o)", "partita::MatMul"),
        ("m = MatMul(x, w) n = Mul(m, half) y = Add(n, wide)", "partita::MatMul"),
        ("m = MatMul(x, w) y = Add(m, column)", "MatMul Add"),
        ("y = MatMul(x, w)", "MatMul"),
    ],
)
def test_products_take_in_bias_residual_and_activation(chain, expected):
    weights = {
        "w": normal(5, 3),
        "b": normal(3),
        "half": np.float32(0.5),
        "wide": normal(1, 1, 3),
        "column": normal(4, 1),
    }
    text = f"g (float[2, 4, 5] x, float[2, 4, 3] r) => (float[2, 4, 3] y) {{ {chain} }}"
    check(model_of(text, weights), expected, x=normal(2, 4, 5), r=normal(2, 4, 3))


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("s = Sigmoid(x) y = Mul(x, s)", "partita::Silu"),
        ("s = Sigmoid(x) y = Mul(s, x)", "partita::Silu"),
        ("s = Sigmoid(x) y = Mul(s, s)", "Sigmoid Mul"),
        ("p = Add(x, three) c = Clip(p, zero, six) y = Div(c, six)", "HardSigmoid"),
        ("p = Add(three, x) c = Clip(p, zero, six) y = Mul(c, sixth)", "HardSigmoid"),
        ("p = Add(x, three) c = Clip(p, zero, six) m = Mul(x, c) y = Div(m, six)", "HardSwish"),
        ("p = Add(x, three) c = Clip(p, zero, six) m = Mul(c, x) y = Mul(m, sixth)", "HardSwish"),
        ("p = Add(x, three) c = Clip(p, zero, six) d = Div(c, six) y = Mul(d, x)", "HardSwish"),
        ("h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul(x, h)", "HardSwish"),
        ("h = HardSigmoid(x) y = Mul(x, h)", "HardSigmoid Mul"),
        ("p = Add(x, three) c = Clip(p, zero, six) y = Sub(six, c)", "Add Clip Sub"),
        ("p = Add(x, three) c = Clip(p, zero, three) y = Div(c, six)", "Add Clip Div"),
        (
            "p = Add(x, three) c = Clip(p, zero, six) m = Mul(p, c) y = Div(m, six)",
            "Add Clip Mul Div",
        ),
    ],
)
def test_activations_spelled_out(chain, expected):
    numbers = {"zero": 0, "three": 3, "six": 6, "sixth": 1 / 6}
    weights = {name: np.float32(number) for name, number in numbers.items()}
    text = f"g (float[3, 50] x) => (float[3, 50] y) {{ {chain} }}"
    check(model_of(text, weights), expected, x=4 * normal(3, 50))


ERF = "d = Div(x, root2) e = Erf(d) p = Add(e, one) "
FACTORED = (
    "f = Mul(x, k) g = Mul(f, x) t = Add(g, one) l = Mul(x, root2pi) s = Mul(l, t) e = Tanh(s) "
    "p = Add(e, one) "
)
TANH = "q = Mul(f, x) r = Add(x, q) s = Mul(r, root2pi) e = Tanh(s) p = Add(e, one) "


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (ERF + "m = Mul(x, p) y = Mul(m, half)", "Gelu"),
        (ERF + "m = Mul(p, half) y = Mul(x, m)", "Gelu"),
        (ERF + "h = Mul(x, half) y = Mul(h, p)", "Gelu"),
        (ERF.replace("Div(x, root2)", "Mul(x, root_half)")
         + "m = Mul(x, p) y = Div(m, two)", "Gelu"),
        (ERF + "m = Mul(x, p) y = Mul(m, two)", "Div Erf Add Mul Mul"),
        ("c = Pow(x, three) f = Mul(c, k) " + TANH.replace("Mul(f, x)", "Identity(f)")
         + "h = Mul(x, half) y = Mul(h, p)", "Gelu"),
        ("a = Mul(x, x) c = Mul(a, x) f = Mul(k, c) " + TANH.replace("Mul(f, x)", "Identity(f)")
         + "m = Mul(x, p) y = Mul(m, half)", "Gelu"),
        (FACTORED + "h = Mul(x, half) y = Mul(h, p)", "Gelu"),
        (FACTORED.replace("Mul(f, x)", "Mul(x, f)").replace("Mul(l, t)", "Mul(t, l)")
         + "m = Mul(p, x) y = Mul(half, m)", "Gelu"),
        (FACTORED.replace("Mul(x, k) g = Mul(f, x)", "Mul(x, x) g = Mul(k, f)")
         .replace("Mul(x, root2pi) s = Mul(l, t)", "Mul(x, t) s = Mul(root2pi, l)")
         + "h = Mul(x, half) y = Mul(h, p)", "Gelu"),
        (FACTORED.replace("Add(g, one)", "Add(g, half)") + "h = Mul(x, half) y = Mul(h, p)",
         "Mul Mul Add Mul Mul Tanh Add Mul Mul"),
        (FACTORED.replace("Mul(f, x)", "Mul(f, f)") + "h = Mul(x, half) y = Mul(h, p)",
         "Mul Mul Add Mul Mul Tanh Add Mul Mul"),
    ],
)  # fmt: skip
def test_gelu_spelled_out(chain, expected):
    numbers = {
        "root2": math.sqrt(2),
        "root_half": math.sqrt(0.5),
        "one": 1,
        "half": 0.5,
        "two": 2,
        "three": 3,
        "k": 0.044715,
        "root2pi": math.sqrt(2 / math.pi),
    }
    weights = {name: np.float32(number) for name, number in numbers.items()}
    text = f"g (float[3, 50] x) => (float[3, 50] y) {{ {chain} }}"
    graph = check(model_of(text, weights), expected, x=2 * normal(3, 50))
    if expected == "Gelu":
        wanted = "tanh" if "Tanh" in chain else "none"
        assert graph.nodes[0].attrs["approximate"] == wanted


MEAN = "m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) "
SQUARE = MEAN + "p = Pow(d, two) v = ReduceMean <axes = [-1]> (p) e = Add(v, eps) r = Sqrt(e) "


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (SQUARE + "q = Div(d, r) s = Mul(q, g1) y = Add(s, b1)", "LayerNormalization"),
        (SQUARE + "q = Div(d, r) s = Mul(g1, q) y = Add(b1, s)", "LayerNormalization"),
        (SQUARE + "q = Div(d, r) y = Mul(q, g1)", "LayerNormalization"),
        (SQUARE + "d2 = Sub(x, m) q = Div(d2, r) s = Mul(q, g1) y = Add(s, b1)",
         "LayerNormalization"),
        (SQUARE.replace("Pow(d, two)", "Mul(d, d)") + "i = Reciprocal(r) q = Mul(d, i) "
         "s = Mul(q, g1) y = Add(s, b1)", "LayerNormalization"),
        (SQUARE + "i = Div(one, r) q = Mul(i, d) s = Mul(q, g1) y = Add(s, b1)",
         "LayerNormalization"),
        (SQUARE.replace("[-1]", "[2]") + "q = Div(d, r) s = Mul(q, g1) y = Add(s, b1)",
         "LayerNormalization"),
        (SQUARE.replace("[-1]", "[1]") + "q = Div(d, r) s = Mul(q, g1) y = Add(s, b1)",
         "partita::ChannelNormalization Mul Add"),
        (SQUARE + "q = Div(r, d) s = Mul(q, g1) y = Add(s, b1)",
         "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
    ],
)  # fmt: skip
def test_layer_normalization_spelled_out(chain, expected):
    weights = {
        "two": np.float32(2),
        "one": np.float32(1),
        "eps": np.float32(1e-3),
        "g1": normal(24),
        "b1": normal(24),
    }
    text = f"g (float[N, 5, 24] x) => (float[N, 5, 24] y) {{ {chain} }}"
    check(model_of(text, weights, opset=17), expected, x=normal(3, 5, 24))


SPELLED = "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"
CHANNELS = SQUARE.replace("[-1]", "[1]")


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (CHANNELS + "q = Div(d, r) s = Mul(q, g3) y = Add(s, b3)", ""),
        (CHANNELS + "q = Div(d, r) s = Mul(g4, q) y = Add(b3, s)", ""),
        (CHANNELS.replace("[1]", "[-3]") + "q = Div(d, r) y = Mul(q, g3)", ""),
        (CHANNELS + "q = Div(d, r) y = Add(q, b3)", ""),
        (CHANNELS + "y = Div(d, r)", ""),
        (CHANNELS + "q = Div(d, r) y = Mul(q, two)", ""),
        (CHANNELS + "q = Div(d, r) y = Relu(q)", " Relu"),
        (CHANNELS + "q = Div(d, r) y = Mul(q, row)", " Mul"),
        (CHANNELS + "q = Div(d, r) s = Add(q, b3) y = Mul(s, g3)", " Mul"),
        (CHANNELS + "q = Div(d, r) y = Mul(q, x)", " Mul"),
        (CHANNELS + "q = Div(d, r) y = Mul(q, r)", None),
        (CHANNELS.replace("[1]", "[2]") + "y = Div(d, r)", None),
        (CHANNELS.replace("[1]", "[1, 2]") + "y = Div(d, r)", None),
        (CHANNELS.replace("[1]", "[-1]", 1) + "y = Div(d, r)", None),
    ],
)
def test_normalization_of_channels_spelled_out(chain, expected):
    weights = {
        "two": np.float32(2),
        "eps": np.float32(1e-3),
        "g3": normal(7, 1, 1),
        "g4": normal(1, 7, 1, 1),
        "b3": normal(7, 1, 1),
        "row": normal(6),
    }
    text = f"g (float[N, 7, 5, 6] x) => (float[N, 7, 5, 6] y) {{ {chain} }}"
    fused = None if expected is None else f"partita::ChannelNormalization{expected}"
    spelled = " ".join(re.findall(r"= ([A-Z]\w+)", chain))
    check(model_of(text, weights, opset=17), fused or spelled, x=normal(3, 7, 5, 6))


@pytest.mark.parametrize(
    ("size", "given"),
    [("1", 1), ("K", 1), ("K", 24)],
)
def test_layer_normalization_of_an_axis_that_its_scale_may_repeat(size, given):
    """A row of one element is normalized to 0, and its product with the scale is a longer row."""
    weights = {
        "two": np.float32(2),
        "eps": np.float32(1e-3),
        "g1": normal(24),
        "b1": normal(24),
    }
    chain = SQUARE + "q = Div(d, r) s = Mul(q, g1) y = Add(s, b1)"
    text = f"g (float[N, {size}] x) => (float[N, 24] y) {{ {chain} }}"
    check(model_of(text, weights, opset=17), SPELLED, x=normal(3, given))


def test_layer_normalization_with_axes_as_inputs():
    weights = {
        "two": np.float32(2),
        "eps": np.float32(1e-3),
        "g1": normal(24),
        "b1": normal(24),
        "last": np.array([-1]),
    }
    chain = SQUARE.replace(" <axes = [-1]> (x)", "(x, last)").replace(
        " <axes = [-1]> (p)", "(p, last)"
    )
    chain += "q = Div(d, r) s = Mul(q, g1) y = Add(s, b1)"
    text = f"g (float[3, 24] x) => (float[3, 24] y) {{ {chain} }}"
    check(model_of(text, weights), "LayerNormalization", x=normal(3, 24))


GROUPS = "r = Reshape(x, groups) i = InstanceNormalization(r, ones, zeros) "
SHAPED = "Reshape InstanceNormalization Reshape"


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (GROUPS + "u = Reshape(i, whole) s = Mul(u, g) y = Add(s, b)", "GroupNormalization"),
        (GROUPS + "u = Reshape(i, whole) s = Mul(g, u) y = Add(b, s)", "GroupNormalization"),
        (GROUPS + "u = Reshape(i, whole) y = Add(u, b)", "GroupNormalization"),
        (GROUPS + "y = Reshape(i, whole)", "GroupNormalization"),
        (GROUPS + "f = Shape(x) u = Reshape(i, f) y = Mul(u, g)", "Shape GroupNormalization"),
        (GROUPS + "u = Reshape(i, whole) s = Mul(u, g) y = Mul(s, s)", "GroupNormalization Mul"),
        (GROUPS + "u = Reshape(i, whole) s = Mul(u, g) t = Neg(u) y = Add(s, t)",
         "GroupNormalization Mul Neg Add"),
        (GROUPS.replace("ones", "powers").replace("zeros", "ones") + "y = Reshape(i, whole)",
         "GroupNormalization"),
        (GROUPS + "t = Reshape(r, whole) u = Reshape(i, whole) y = Add(u, t)",
         "Reshape Reshape GroupNormalization Add"),
        (GROUPS + "u = Reshape(i, whole) y = Mul(u, wide)", "GroupNormalization Mul"),
        (GROUPS + "y = Reshape(i, other)", SHAPED),
        (GROUPS.replace("groups", "uneven").replace("ones", "eights").replace("zeros", "eights")
         + "y = Reshape(i, whole)", SHAPED),
        (GROUPS.replace("groups", "batches") + "y = Reshape(i, whole)", SHAPED),
    ],
)  # fmt: skip
def test_group_normalization_spelled_out(chain, expected):
    weights = {
        "groups": np.array([0, 3, -1]),
        "uneven": np.array([0, 8, -1]),
        "batches": np.array([1, 3, -1]),
        "whole": np.array([2, 6, 5, 4]),
        "other": np.array([2, 6, 4, 5]),
        "ones": np.ones(3, np.float32),
        "zeros": np.zeros(3, np.float32),
        "powers": np.array([1, 2, 4], np.float32),
        "eights": np.ones(8, np.float32),
        "g": normal(6, 1, 1),
        "b": normal(6, 1, 1),
        "wide": normal(5, 4),
    }
    rows = 5 if "other" not in chain else 4
    text = f"g (float[2, 6, 5, 4] x) => (float[2, 6, {rows}, {9 - rows}] y) {{ {chain} }}"
    check(model_of(text, weights), expected, x=normal(2, 6, 5, 4))


def test_group_normalization_of_an_unknown_number_of_images():
    weights = {
        "groups": np.array([0, 2, -1]),
        "ones": np.ones(2, np.float32),
        "zeros": np.zeros(2, np.float32),
        "g": normal(6, 1),
    }
    chain = GROUPS + "f = Shape(x) u = Reshape(i, f) y = Mul(u, g)"
    text = f"g (float[N, 6, T] x) => (float[N, 6, T] y) {{ {chain} }}"
    check(model_of(text, weights), "Shape GroupNormalization", x=normal(3, 6, 7))


def test_factors_of_a_group_normalization_that_no_number_holds_stay():
    weights = {
        "groups": np.array([0, 3, -1]),
        "ones": np.full(3, 1e30, np.float32),
        "zeros": np.zeros(3, np.float32),
        "whole": np.array([2, 6, 5]),
        "g": np.full((6, 1), 1e30, np.float32),
    }
    text = f"""g (float[2, 6, 5] x) => (float[2, 6, 5] y)
    {{ {GROUPS} u = Reshape(i, whole) y = Mul(u, g) }}"""
    check(model_of(text, weights), SHAPED + " Mul", x=np.zeros((2, 6, 5), np.float32))


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("a = Identity(x) y = Neg(a)", "Neg"),
        ("a = Cast <to = 1> (x) y = Neg(a)", "Neg"),
        ("a = Cast <to = 11> (x) y = Cast <to = 1> (a)", "Cast Cast"),
        ("a = Transpose <perm = [0, 1]> (x) y = Neg(a)", "Neg"),
        ("a = Transpose(x) b = Transpose(a) y = Neg(b)", "Transpose Transpose Neg"),
        ("a = Pad(x, none) y = Neg(a)", "Neg"),
        ("a = Concat <axis = 0> (x) y = Neg(a)", "Neg"),
        ("a = Dropout(x) y = Neg(a)", "Neg"),
        ("a = Dropout(x, half, no) b = Identity(a) y = Add(b, b)", "Add"),
        ("y = Identity(x)", "Identity"),
    ],
)
def test_idle_nodes_are_removed(chain, expected):
    weights = {
        "none": np.zeros(4, np.int64),
        "half": np.float32(0.5),
        "no": np.array(False),
    }
    text = f"g (float[3, 4] x) => (float[3, 4] y) {{ {chain} }}"
    check(model_of(text, weights), expected, x=normal(3, 4))


def test_dropout_with_a_mask_that_is_read_stays():
    text = "g (float[3] x) => (float[3] y, bool[3] m) { a, m = Dropout(x) y = Neg(a) }"
    check(model_of(text), "Dropout Neg", x=normal(3))


def test_a_backend_may_refuse_what_fusion_makes():
    text = "g (float[3] x) => (float[3] y) { s = Sigmoid(x) y = Mul(x, s) }"
    graph = lower_proto(model_of(text))
    fuse(graph, accepts=lambda node: node.op_type != "Silu")
    assert [node.kind for node in graph.nodes] == ["Sigmoid", "Mul"]
    assert [value.producer for value in graph.outputs] == [graph.nodes[1]]


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("a = Expand(s, size) y = Div(x, a)", "Div"),
        ("a = Expand(s, size) y = Sub(a, x)", "Sub"),
        ("a = Expand(s, size) b = Add(x, a) y = Mul(b, a)", "Add Mul"),
        ("a = Expand(s, size) b = Neg(a) c = Mul(a, x) y = Add(b, c)", "Expand Neg Mul Add"),
        ("a = Expand(x, size) y = Mul(a, a)", "Expand Mul"),  # one operand gives the shape
        ("a = Expand(x, size) y = Div(s, a)", "Expand Div"),
        ("a = Expand(s, more) y = Div(x, a)", "Expand Div"),  # which repeats x too
    ],
)
def test_what_is_repeated_for_an_operator_that_repeats(chain, expected):
    text = f"g (float[2,3,4] x, float[3,1] s) => (float[2,3,4] y) {{ {chain} }}"
    if "more" in chain:
        text = text.replace("float[2,3,4] y", "float[5,2,3,4] y")
    sizes = {"size": np.array([2, 3, 4]), "more": np.array([5, 2, 3, 4])}
    check(model_of(text, sizes), expected, x=normal(2, 3, 4), s=normal(3, 1))
