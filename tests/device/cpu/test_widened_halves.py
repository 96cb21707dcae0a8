"""Products and convolutions of 16-bit floats: in float32 in between, rounded at the end."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_cpu.passes.precision.widened_halves import widen_halves

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
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
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


HEADS, SIZE, TOKENS, PAST = 3, 8, 6, 10
WIDTH = HEADS * SIZE


def block():
    """A layer of an encoder, spelled out, whose attention has a mask that the caller gives."""
    nodes = []

    def add(op_type, inputs, output, **attributes):
        nodes.append(
            helper.make_node(op_type, inputs, [output], f"{op_type} {output}", **attributes)
        )

    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        add("MatMul", ["x", f"w{name}"], f"{name}1")
        add("Add", [f"{name}1", f"b{name}"], f"{name}2")
        add("Reshape", [f"{name}2", "apart"], f"{name}3")
        add("Transpose", [f"{name}3"], f"{name}4", perm=perm)
    add("MatMul", ["q4", "k4"], "scores")
    add("Mul", ["scores", "scale"], "scaled")
    add("Add", ["scaled", "mask"], "masked")
    add("Softmax", ["masked"], "shares", axis=-1)
    add("MatMul", ["shares", "v4"], "mixed")
    add("Transpose", ["mixed"], "turned", perm=[0, 2, 1, 3])
    add("Reshape", ["turned", "together"], "heads")
    add("MatMul", ["heads", "wo"], "projected")
    add("Add", ["x", "projected"], "sum")
    add("LayerNormalization", ["sum", "factor", "shift"], "normal", axis=-1)
    add("MatMul", ["normal", "w1"], "wide")
    add("Relu", ["wide"], "active")
    add("MatMul", ["active", "w2"], "narrow")
    add("Add", ["normal", "narrow"], "y")
    weights = {
        **{f"w{name}": values(WIDTH, WIDTH, seed=i) for i, name in enumerate("qkvo")},
        **{f"b{name}": values(WIDTH, seed=i + 4) for i, name in enumerate("qkv")},
        "w1": values(WIDTH, 4 * WIDTH, seed=7),
        "w2": values(4 * WIDTH, WIDTH, seed=8),
        "factor": values(WIDTH, seed=9) + np.float32(1),
        "shift": values(WIDTH, seed=10),
        "scale": np.array(SIZE**-0.5, np.float32),
        "apart": np.array([0, 0, HEADS, SIZE]),
        "together": np.array([0, 0, WIDTH]),
    }
    return nodes, weights


def rounded(arrays, kind):
    """The floats among them as numbers of a type, in float32 again."""
    return {
        name: array.astype(NUMPY[kind]).astype(np.float32) if array.dtype == np.float32 else array
        for name, array in arrays.items()
    }


def bits_alike(found, expected):
    """The share of numbers that are the expected ones, once these are rounded."""
    assert (found.shape, found.dtype.itemsize) == (expected.shape, 2)
    return np.mean(found.view(np.uint16) == expected.astype(found.dtype).view(np.uint16))


CONVERSIONS = {"convert_run", "widen_kernel", "narrow_kernel"}


def steps_of(request):
    """The kernels that a request runs, but for those that convert 16-bit floats."""
    return [s.how for s in request.explain_execution().steps if s.how not in CONVERSIONS]


@pytest.mark.parametrize("kind", [HALF, BFLOAT])
def test_products_hand_float32_to_one_another(kind):
    """Attention, residual sums and normalization between them, too, and by the same kernels."""
    nodes, weights = block()
    mask = np.where(np.tri(TOKENS, dtype=bool), 0, -np.inf).astype(np.float32)
    feeds = rounded({"x": values(2, TOKENS, WIDTH, seed=11), "mask": mask}, kind)
    found = {}
    for one, held in ((kind, weights), (FLOAT, rounded(weights, kind))):
        masks = [helper.make_tensor_value_info("mask", one, mask.shape)]
        model = network(nodes, (2, TOKENS, WIDTH), held, one, others=masks)
        given = {name: array.astype(NUMPY[one]) for name, array in feeds.items()}
        found[one] = computed(model, given)
    ((result,), request), (_, plain) = found[kind], found[FLOAT]
    (expected,) = onnxruntime_results(model, feeds)
    assert bits_alike(result, expected) > 0.98
    assert steps_of(request) == steps_of(plain)
    conversions = len(request.explain_execution().steps) - len(steps_of(request))
    assert conversions == 3  # of x, of the mask and of the result


def test_a_cache_is_extended_as_it_is():
    """Keys become float32 before they are turned: attention takes that in."""
    nodes = [
        helper.make_node("MatMul", ["x", "wk"], ["k1"]),
        helper.make_node("Reshape", ["k1", "apart"], ["k2"]),
        helper.make_node("Transpose", ["k2"], ["k3"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["past", "k3"], ["present"], axis=2),
        helper.make_node("Transpose", ["present"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "wq"], ["q1"]),
        helper.make_node("Reshape", ["q1", "apart"], ["q2"]),
        helper.make_node("Transpose", ["q2"], ["q3"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["q3", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "present"], ["y"]),
    ]
    weights = {name: values(WIDTH, WIDTH, seed=i) for i, name in enumerate(("wq", "wk"))}
    weights["apart"] = np.array([0, 0, HEADS, SIZE])
    feeds = {"x": values(1, 1, WIDTH, seed=2), "past": values(1, HEADS, PAST, SIZE, seed=3)}
    feeds = rounded(feeds, HALF)
    found = {}
    for kind, held in ((HALF, weights), (FLOAT, rounded(weights, HALF))):
        past = [helper.make_tensor_value_info("past", kind, feeds["past"].shape)]
        model = network(nodes, (1, 1, WIDTH), held, kind, ("y", "present"), past)
        given = {name: array.astype(NUMPY[kind]) for name, array in feeds.items()}
        found[kind] = computed(model, given)
    ((y, present), request), (_, plain) = found[HALF], found[FLOAT]
    expected, keys = onnxruntime_results(model, feeds)
    np.testing.assert_allclose(y.astype(np.float32), expected, rtol=2e-3, atol=2e-3)
    assert bits_alike(present, keys) > 0.98
    np.testing.assert_array_equal(present[:, :, :PAST], given["past"].astype(np.float16))
    assert steps_of(request) == steps_of(plain)


@pytest.mark.parametrize("kind", [HALF, BFLOAT])
@pytest.mark.parametrize(("scale", "number"), [("Div", 2**0.5), ("Mul", 0.5**0.5)])
def test_gelu_has_constants_of_its_type(kind, scale, number):
    """The root of 2 in 16 bits is 1.4140625: that is meant, and the activation a product's own."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node(scale, ["p", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["a"]),
        helper.make_node("Mul", ["p", "a"], ["m"]),
        helper.make_node("Mul", ["m", "half"], ["y"]),
    ]
    numbers = {"root": number, "one": 1, "half": 0.5}
    weights = {name: np.array(value, np.float32) for name, value in numbers.items()}
    weights["w"] = values(WIDTH, 40, seed=1)
    x = rounded({"x": 2 * values(7, WIDTH)}, kind)["x"]
    model = network(nodes, x.shape, weights, kind)
    (found,), request = computed(model, {"x": x.astype(NUMPY[kind])})
    assert "multiply_tiles" in steps_of(request)
    assert len(steps_of(request)) == 1
    product = x.astype(np.float64) @ rounded(weights, kind)["w"]
    expected = product / 2 * (1 + np.vectorize(math.erf)(product / math.sqrt(2)))
    assert bits_alike(found, expected) > 0.98


def test_blocks_and_caches_of_a_decoder_keep_their_scales_and_types():
    blocks = {"K": WIDTH, "N": WIDTH, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
    rng = np.random.default_rng(0)
    nodes, weights = [], {}
    for name, source in (("q", "x"), ("k", "x"), ("v", "x"), ("y", "sum")):
        nodes.append(
            helper.make_node(
                "MatMulNBits", [source, f"{name}w", f"{name}s"], [name], name, **blocks
            )
        )
        weights[f"{name}w"] = rng.integers(0, 256, (WIDTH, 2, 8)).astype(np.uint8)
        weights[f"{name}s"] = rng.uniform(0.01, 0.1, (WIDTH, 2)).astype(np.float32)
    attention = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_key", "past_value", "lengths", "total"],
        ["a", "key", "value"],
        "attention",
        num_heads=HEADS,
        kv_num_heads=HEADS,
        domain="com.microsoft",
    )
    nodes[3:3] = [attention, helper.make_node("Add", ["x", "a"], ["sum"], "residual")]
    weights |= {"lengths": np.array([PAST], np.int32), "total": np.array(PAST + 1, np.int32)}
    cache = 1, HEADS, PAST + 5, SIZE
    feeds = {"x": values(1, 1, WIDTH), "past_key": values(*cache), "past_value": values(*cache)}
    feeds = rounded(feeds, HALF)
    for kind, held in ((HALF, weights), (FLOAT, rounded(weights, HALF))):
        pasts = [helper.make_tensor_value_info(f"past_{n}", kind, cache) for n in ("key", "value")]
        model = network(nodes, (1, 1, WIDTH), held, kind, ("y", "key", "value"), pasts)
        if kind == HALF:
            given = {name: array.astype(np.float16) for name, array in feeds.items()}
            found, request = computed(model, given, EXECUTION_MODE_HINT="ACCURACY")
    for got, want in zip(found, onnxruntime_results(model, feeds), strict=True):
        valid = (slice(None), slice(None), slice(PAST + 1))[: got.ndim - 1]
        got, want = got[valid].astype(np.float32), want[valid]
        np.testing.assert_allclose(got, want, rtol=4e-3, atol=4e-3)
    steps = [step.how for step in request.explain_execution().steps]
    assert steps.count("convert_run") == 2  # what comes in and what goes out


def test_large_matrices_stay_as_they_are():
    """Small ones and other constants become float32; a product reads what `reads` says."""
    from partita.lowering import lower_proto

    nodes = [
        helper.make_node("MatMul", ["x", "large"], ["a"]),
        helper.make_node("MatMul", ["a", "small"], ["b"]),
        helper.make_node("Add", ["b", "small"], ["y"]),
    ]
    weights = {"large": values(8, 40), "small": values(40, 2)}
    graph = lower_proto(network(nodes, (40, 8), weights, HALF, ("a", "b", "y")))
    widen_halves(graph, lambda matrix: matrix.shape == (8, 40))
    first, second, both = (node for node in graph.nodes if node.op_type != "Cast")
    assert first.inputs[1].const is None
    assert first.inputs[1].producer.inputs[0].const.dtype == np.float16
    assert second.inputs[1].const.dtype == both.inputs[1].const.dtype == np.float32


def test_graphs_without_products_of_halves_stay_as_they_are():
    from partita.lowering import lower_proto

    for kind, nodes, weights in (
        (HALF, [helper.make_node("Mul", ["x", "w"], ["y"])], {"w": values(5)}),
        (FLOAT, [helper.make_node("Conv", ["x", "w"], ["y"])], {"w": values(3, 4, 1, 1)}),
    ):
        graph = lower_proto(network(nodes, (2, 4, 5, 5), weights, kind))
        before = list(graph.nodes)
        widen_halves(graph, lambda matrix: False)
        assert [node.op_type for node in graph.nodes] == [node.op_type for node in before]
