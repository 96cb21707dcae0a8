"""Networks over volumes: convolutions of three spatial dimensions, computed slice by slice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx import helper
from sampling import examples

import partita
from partita.errors import PartitaError

from .test_native_sequences import LEVELS, check, model_of


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", request.param)
    return request.param


def network_of(nodes, shape, outputs, weights):
    return model_of(nodes, {"x": shape}, outputs, weights)


def computed_by(model, x):
    """Compares two runs with onnxruntime; returns what computed each node."""
    request = check(model, {"x": x}, PERF_COUNT=True)
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


@examples(40)
@given(convolutions(), st.integers(0, 99))
def test_random_sums_of_convolutions_of_slices(drawn, seed):
    """One volume of many channels: slices are not joined."""
    shape, attrs, outputs, kernel = drawn
    shape, attrs = (1, 18, *shape[2:]), {**attrs, "group": 1}
    rng = np.random.default_rng(seed)
    weights = weights_of(rng, 18, outputs, kernel)
    model = network_of(network(attrs), shape, ["c", "r", "y"], weights)
    computed_by(model, rng.standard_normal(shape).astype(np.float32))
    fused = [*network(attrs)[:1], helper.make_node("Relu", ["c"], ["r"])]
    computed_by(
        network_of(fused, shape, ["r"], weights), rng.standard_normal(shape).astype(np.float32)
    )


@examples(60)
@given(convolutions(), st.integers(0, 99))
def test_random_convolutions_over_volumes(drawn, seed):
    shape, attrs, outputs, kernel = drawn
    rng = np.random.default_rng(seed)
    weights = weights_of(rng, shape[1], outputs, kernel, attrs["group"])
    model = network_of(network(attrs), shape, ["c", "r", "y"], weights)
    computed_by(model, rng.standard_normal(shape).astype(np.float32))


@st.composite
def pools(draw):
    """Sizes of the input, and a pool's operator and attributes."""
    op_type = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    sizes, kernel, strides, pads = [], [], [], []
    for _ in range(3):
        taps = draw(st.integers(1, 3))
        begin, end = draw(st.integers(0, taps - 1)), draw(st.integers(0, taps - 1))
        sizes.append(draw(st.integers(max(1, taps - begin - end), 8)))
        kernel.append(taps)
        strides.append(draw(st.integers(1, 3)))
        pads.append((begin, end))
    attrs = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": [begin for begin, _ in pads] + [end for _, end in pads],
        "ceil_mode": draw(st.integers(0, 1)),
    }
    if op_type == "AveragePool":
        attrs["count_include_pad"] = draw(st.integers(0, 1))
    return (draw(st.integers(1, 3)), draw(st.integers(1, 20)), *sizes), op_type, attrs


def pooled_network(op_type, attrs):
    """A pointwise convolution, a pool and another convolution."""
    return [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="first"),
        helper.make_node(op_type, ["c"], ["p"], name="pool", **attrs),
        helper.make_node("Conv", ["p", "w2"], ["y"], name="last"),
    ]


@examples(60)
@given(pools(), st.integers(0, 99))
def test_random_pools_over_volumes(drawn, seed):
    shape, op_type, attrs = drawn
    rng = np.random.default_rng(seed)
    weights = weights_of(rng, shape[1], 7, (1, 1, 1))
    model = network_of(pooled_network(op_type, attrs), shape, ["p", "y"], weights)
    computed_by(model, rng.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_every_level_pools_volumes_by_slices(level, op_type):
    rng = np.random.default_rng(0)
    weights = weights_of(rng, 3, 20, (1, 1, 1))
    attrs = {"kernel_shape": [2, 3, 3], "strides": [2, 2, 1], "pads": [0, 1, 1, 0, 1, 1]}
    model = network_of(pooled_network(op_type, attrs), (2, 3, 6, 14, 15), ["y"], weights)
    taken = computed_by(model, rng.standard_normal((2, 3, 6, 14, 15)).astype(np.float32))
    native = "portable" not in level
    assert taken["pool"].endswith("_f32") == native
    assert not [name for name in taken if name.startswith("permute") and "pool" in name]


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_every_level_computes_volumes_by_its_tiles(level, mode):
    rng = np.random.default_rng(0)
    weights = weights_of(rng, 3, 20, (3, 3, 3))
    attrs = {"auto_pad": mode, "strides": [1, 2, 1]}
    model = network_of(network(attrs), (1, 3, 7, 14, 15), ["y"], weights)
    taken = computed_by(model, rng.standard_normal((1, 3, 7, 14, 15)).astype(np.float32))
    native = "portable" not in level
    assert ("blas" not in set(taken.values())) == native


def sums_of_slices(x, w, pads, dilations, strides):
    """A convolution of one volume in float64: (outputs, depth, height, width)."""
    padded = np.pad(x[0].astype(np.float64), [(0, 0), *((n, n) for n in pads)])
    reach = [gap * (taps - 1) for gap, taps in zip(dilations, w.shape[2:], strict=True)]
    out = [size - far for size, far in zip(padded.shape[1:], reach, strict=True)]
    total = np.zeros((w.shape[0], *out))
    down, below, across = dilations
    for d, h, v in np.ndindex(w.shape[2:]):
        window = padded[:, down * d :, below * h :, across * v :][:, : out[0], : out[1], : out[2]]
        total += np.einsum("oc,cdhw->odhw", w[:, :, d, h, v].astype(np.float64), window)
    return total[:, :: strides[0], :: strides[1], :: strides[2]]


def computed_slices(x, w, pads, dilations, strides, config):
    """What the device makes of the same, and its steps."""
    attrs = {"pads": [*pads, *pads], "dilations": dilations, "strides": strides}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], **attrs)]
    model = network_of(nodes, x.shape, ["y"], {"w": w})
    request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
    found = np.asarray(request.infer({"x": x})[0])[0]
    return found, request.explain_execution().steps


EXACT = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


@pytest.mark.parametrize("kernel", [(3, 3, 3), (3, 1, 1), (2, 3, 1)])
def test_tiles_add_up_the_slices_under_a_window(level, kernel):
    """One product for each output slice, whichever slices lie under its window."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((40, 18, *kernel)).astype(np.float32)
    x = rng.standard_normal((1, 18, 6, 9, 15)).astype(np.float32)
    given = x, w, [2, kernel[1] // 2, kernel[2] // 2], [2, 1, 1], [1, 1, 1]
    found, steps = computed_slices(*given, EXACT)
    expected = sums_of_slices(*given)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
    products = [step for step in steps if step.how == "multiply_tiles"]
    if "portable" not in level:
        assert len(products) == expected.shape[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strides", [[1, 1, 1], [1, 2, 2], [2, 3, 1]])
@pytest.mark.parametrize(("channels", "dilation"), [(3, 1), (3, 2), (16, 1), (32, 1)])
@pytest.mark.parametrize("arithmetic", ["exact", "default", "bf16"])
def test_tiles_add_up_slices_in_every_arithmetic(level, arithmetic, channels, dilation, strides):
    """Whether tiles read lines of the slices, of pictures or not, or copies of their windows."""
    rng = np.random.default_rng(channels)
    w = rng.standard_normal((40, channels, 3, 3, 3)).astype(np.float32)
    x = rng.standard_normal((1, channels, 11, 9, 15)).astype(np.float32)
    given = x, w, [1, 1, 1], [1, 1, dilation], strides
    configs = {"exact": EXACT, "default": {}, "bf16": {"INFERENCE_PRECISION_HINT": "bf16"}}
    tolerances = {"exact": 2e-6, "default": 2e-5, "bf16": 1.2e-2}
    found, _ = computed_slices(*given, configs[arithmetic])
    expected = sums_of_slices(*given)
    assert np.abs(found - expected).max() <= tolerances[arithmetic] * np.abs(expected).max()


@pytest.mark.parametrize("arithmetic", ["f32", "bf16"])
@pytest.mark.parametrize("strides", [[1, 1, 1], [1, 2, 2]])
def test_slices_of_infinite_numbers_and_none(level, arithmetic, strides):
    rng = np.random.default_rng(5)
    w = rng.standard_normal((40, 18, 3, 3, 3)).astype(np.float32)
    x = rng.standard_normal((1, 18, 6, 9, 15)).astype(np.float32)
    x[0, 3, 0, 4, 7], x[0, 5, 5, 0, 0] = np.inf, np.nan
    given = x, w, [1, 1, 1], [1, 1, 1], strides
    found, _ = computed_slices(*given, {**EXACT, "INFERENCE_PRECISION_HINT": arithmetic})
    expected = sums_of_slices(*given)
    finite = np.isfinite(expected)
    assert not finite.all()
    largest = np.abs(expected[finite]).max()
    tolerance = (2e-6 if arithmetic == "f32" else 1.2e-2) * largest
    assert np.abs(found[finite] - expected[finite]).max() <= tolerance
    assert np.array_equal(found[~finite], expected[~finite].astype(np.float32), equal_nan=True)


def test_volumes_of_varying_depth():
    rng = np.random.default_rng(0)
    weights = weights_of(rng, 4, 8, (3, 3, 3))
    model = network_of(network({"pads": [1] * 6}), (1, 4, "depth", 9, 9), ["y"], weights)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for depth in (5, 2, 8, 5):
        x = rng.standard_normal((1, 4, depth, 9, 9)).astype(np.float32)
        (expected,) = onnxruntime_results(model, {"x": x})
        found = np.asarray(request.infer({"x": x})[0])
        assert np.abs(found - expected).max() <= 4e-5 * np.abs(expected).max()


def test_a_window_that_does_not_fit_is_refused_by_name():
    weights = weights_of(np.random.default_rng(0), 3, 4, (3, 3, 3))
    model = network_of(network({}), (1, 3, "depth", 9, 9), ["y"], weights)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    with pytest.raises(PartitaError, match="first"):
        request.infer({"x": np.zeros((1, 3, 1, 9, 9), np.float32)})


@pytest.mark.parametrize("strides", [[3, 1, 1], [1, 4, 1], [3, 4, 5], [1, 1, 5]])
def test_volumes_of_fewer_slices_or_rows_are_spread_over_others(strides):
    weights = weights_of(np.random.default_rng(2), 4, 8, (1, 1, 1))
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Conv", ["x", "w", "b"], ["d"], strides=strides),
        helper.make_node("Sub", ["c", "d"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["y"]),
    ]
    x = np.random.default_rng(3).standard_normal((2, 4, 3, 4, 5)).astype(np.float32)
    for shape in (x.shape, [None, 4, *[None] * 3]):
        check(network_of(nodes, shape, {"y": None}, weights), {"x": x})


def unet_nodes(norm, kernel, axis, activation):
    """A U-Net of one step: down by a pool, up by blocks, put beside what was there."""
    attrs = {"num_groups": 2} if norm == "GroupNormalization" else {}
    moments = ["mean", "var"] if norm == "BatchNormalization" else []
    return [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="first", pads=[1] * 6),
        helper.make_node(norm, ["c", "factor", "b", *moments], ["n"], name="norm", **attrs),
        helper.make_node(activation, ["n"], ["r"], name="activation"),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=kernel, strides=kernel),
        helper.make_node("ConvTranspose", ["p", "up", "b"], ["u"], name="up", strides=kernel),
        helper.make_node("Relu", ["u"], ["v"]),
        helper.make_node("Concat", ["r", "v"], ["j"], name="concat", axis=axis),
        helper.make_node("Conv", ["j", "w2"], ["y"], name="last"),
    ]


def unet(nodes, shape, outputs, weights):
    model = network_of(nodes, shape, outputs, weights)
    model.opset_import[0].version = 21  # of GroupNormalization with a factor for each channel
    return model


def unet_weights(rng, channels, outputs, kernel, joined):
    weights = weights_of(rng, channels, outputs, (3, 3, 3))
    weights["factor"] = rng.standard_normal(outputs).astype(np.float32)
    weights["mean"] = rng.standard_normal(outputs).astype(np.float32)
    weights["var"] = rng.uniform(0.5, 2, outputs).astype(np.float32)
    weights["up"] = rng.standard_normal((outputs, outputs, *kernel)).astype(np.float32)
    weights["w2"] = rng.standard_normal((5, joined, 1, 1, 1)).astype(np.float32)
    return weights


NORMALIZATIONS = ["InstanceNormalization", "GroupNormalization", "BatchNormalization"]


@st.composite
def unets(draw):
    """Sizes of the input, blocks, outputs, a normalization, an axis and an activation."""
    kernel = [draw(st.integers(1, 3)) for _ in range(3)]
    sizes = [taps * draw(st.integers(1, 4)) for taps in kernel]
    outputs = 2 * draw(st.integers(1, 12))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 5)), *sizes)
    norm = draw(st.sampled_from(NORMALIZATIONS))
    axis = draw(st.sampled_from([0, 1, 1, 2, 3, 4, -1, -4]))
    return shape, kernel, outputs, norm, axis, draw(st.sampled_from(["LeakyRelu", "Sigmoid"]))


@examples(60)
@given(unets(), st.integers(0, 99))
def test_random_networks_that_go_down_and_up_over_volumes(drawn, seed):
    shape, kernel, outputs, norm, axis, activation = drawn
    rng = np.random.default_rng(seed)
    weights = unet_weights(rng, shape[1], outputs, kernel, outputs * (1 + (axis % 5 == 1)))
    nodes = unet_nodes(norm, kernel, axis, activation)
    model = unet(nodes, shape, ["r", "u", "y"], weights)
    computed_by(model, rng.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("norm", NORMALIZATIONS)
def test_every_level_goes_down_and_up_without_turning_volumes(level, norm):
    rng = np.random.default_rng(0)
    weights = unet_weights(rng, 3, 20, (2, 2, 2), 40)
    nodes = unet_nodes(norm, [2, 2, 2], 1, "LeakyRelu")
    shape = (1, 3, 6, 14, 16)
    x = rng.standard_normal(shape).astype(np.float32)
    taken = computed_by(unet(nodes, shape, ["y"], weights), x)
    native = "portable" not in level
    assert ("blas" not in set(taken.values())) == native
    turned = [name for name in taken if name.startswith("permute")]
    named = ("norm", "activation", "up", "concat")
    assert not native or not [name for name in turned if any(word in name for word in named)]


def test_volumes_of_many_slices_are_not_joined():
    """Each step sums the slices under windows of several results."""
    rng = np.random.default_rng(6)
    w = rng.standard_normal((8, 18, 3, 3, 3)).astype(np.float32)
    x = rng.standard_normal((1, 18, 90, 3, 5)).astype(np.float32)
    given = x, w, [1, 1, 1], [1, 1, 1], [1, 1, 1]
    found, steps = computed_slices(*given, EXACT)
    expected = sums_of_slices(*given)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
    assert "join_slices" not in {step.how for step in steps}
