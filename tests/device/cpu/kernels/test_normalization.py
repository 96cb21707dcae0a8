"""Normalizations against onnxruntime and float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from judge import onnxruntime_results
from onnx import numpy_helper
from single_op import assert_same, check, model_of, normal, run_ours

import partita
from partita.contract.query import ReasonCode
from partita.errors import CompileError


@pytest.mark.parametrize("axis", [-1, 1, 2, 0])
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_normalization(axis, with_bias):
    x = normal(1, 3, 4, 50) + 2
    shape = x.shape[axis:]
    inputs = [x, normal(2, *shape), *([normal(3, *shape)] if with_bias else [])]
    check(
        "LayerNormalization",
        inputs,
        opset=17,
        outputs=3,
        axis=axis,
        epsilon=1e-3,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("declared", [["N", "K"], None])
def test_layer_normalization_spelled_out_where_a_size_is_unknown(core, device, size, declared):
    constants = {"two": np.float32(2), "eps": np.float32(1e-5), "scale": normal(2, 8)}
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["m"], axes=[-1]),
        onnx.helper.make_node("Sub", ["x", "m"], ["d"]),
        onnx.helper.make_node("Pow", ["d", "two"], ["p"]),
        onnx.helper.make_node("ReduceMean", ["p"], ["v"], axes=[-1]),
        onnx.helper.make_node("Add", ["v", "eps"], ["e"]),
        onnx.helper.make_node("Sqrt", ["e"], ["r"]),
        onnx.helper.make_node("Div", ["d", "r"], ["q"]),
        onnx.helper.make_node("Mul", ["q", "scale"], ["y"]),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "spelled out",
        [onnx.helper.make_tensor_value_info("x", kind, declared)],
        [onnx.helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()],
    )
    imports = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    x = normal(1, 3, size)
    (expected,) = onnxruntime_results(model, {"x": x})
    np.testing.assert_allclose(core.compile_model(model, device)([x])[0], expected, atol=1e-5)


def test_layer_normalization_of_a_far_mean():
    x = (normal(4, 8, 768).astype(np.float64) + 1e4).astype(np.float32)
    wide = x.astype(np.float64)
    (y,) = run_ours("LayerNormalization", [x, np.ones(768, np.float32)], opset=17)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, expected, atol=1e-3)


FAR = [1, 7, 64, 768, 4099]


def far(width, mean, *shape):
    """Numbers about a mean so far away that float32 cannot hold it to a thousandth."""
    x = (normal(width, *shape).astype(np.float64) + mean).astype(np.float32)
    return x, x.astype(np.float64)


@pytest.mark.parametrize("mean", [1e4, -3e4])
@pytest.mark.parametrize("width", FAR)
def test_layer_normalization_is_as_exact_far_away(width, mean):
    x, wide = far(width, mean, 8, width)
    ones = np.ones(width, np.float32)
    y, means, inverse = run_ours("LayerNormalization", [x, ones], opset=17, outputs=3)
    deviation = np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, (wide - wide.mean(-1, keepdims=True)) / deviation, atol=2e-6)
    np.testing.assert_allclose(means, wide.mean(-1, keepdims=True), rtol=6e-8)
    np.testing.assert_allclose(inverse, 1 / deviation, rtol=1e-6)


@pytest.mark.parametrize("mean", [1e4, -3e4])
@pytest.mark.parametrize("width", FAR)
def test_planes_are_as_exact_far_away(width, mean):
    x, wide = far(width, mean, 2, 4, width)
    scale, bias = np.ones(4, np.float32), np.zeros(4, np.float32)
    (y,) = run_ours("InstanceNormalization", [x, scale, bias])
    deviation = np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, (wide - wide.mean(-1, keepdims=True)) / deviation, atol=2e-6)
    (y,) = run_ours("GroupNormalization", [x, scale, bias], opset=21, num_groups=2)
    wide = wide.reshape(2, 2, 2 * width)
    deviation = np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    expected = (wide - wide.mean(-1, keepdims=True)) / deviation
    np.testing.assert_allclose(y, expected.reshape(x.shape), atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_layer_normalization_of_halves_has_float32_statistics(dtype):
    x = normal(5, 4, 32).astype(dtype)
    y, mean, inverse = run_ours("LayerNormalization", [x, np.ones(32, dtype)], opset=17, outputs=3)
    wide = x.astype(np.float32)
    assert y.dtype == dtype
    assert_same(mean, wide.mean(-1, keepdims=True), 1e-5, 1e-6)
    assert_same(inverse, 1 / np.sqrt(wide.var(-1, keepdims=True) + np.float32(1e-5)), 1e-4, 1e-5)


def test_statistics_of_doubles_are_float32_too():
    """ONNX and onnxruntime say so; doubles came back, which the model did not declare."""
    x = normal(5, 4, 32).astype(np.float64)
    inputs = [x, np.ones(32)]
    check("LayerNormalization", inputs, opset=17, outputs=3, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n", [64, 3000])
def test_the_mean_of_an_infinity_is_infinite(dtype, n):
    """As in float64; NaN came back, the mean of what lies beyond an infinite mean."""
    x = np.random.default_rng(n).standard_normal((19, n)).astype(dtype)
    x[0, 3], x[2, 40], x[18, -1] = -np.inf, np.inf, -np.inf
    x[4, 1], x[5, :2] = np.nan, (np.inf, -np.inf)
    y, mean, inverse = run_ours("LayerNormalization", [x, np.ones(n, dtype)], opset=17, outputs=3)
    with np.errstate(invalid="ignore"):
        expected = x.mean(-1, keepdims=True, dtype=np.float64)
    assert_same(mean, expected.astype(np.float32), 1e-5, 1e-6)
    rows = [0, 2, 4, 5, 18]
    assert np.isnan(y[rows]).all()
    assert np.isnan(inverse[rows]).all()
    assert np.isfinite(np.delete(y, rows, 0)).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_of_no_elements_have_no_mean(dtype):
    """What memory held before came back."""
    x = np.ones((5, 0), dtype)
    _, *found = run_ours("LayerNormalization", [x, np.ones(0, dtype)], opset=17, outputs=3)
    for statistic in found:
        assert_same(statistic, np.full((5, 1), np.nan, np.float32), 0, 0)


@pytest.mark.parametrize(
    ("shape", "axis", "of_scale"),
    [((2, 3, 4), 1, (1, 4)), ((2, 4, 4), -1, (4, 1)), ((2, 4, 2, 2), 2, (4, 1, 1))],
    ids=["of a column", "of a row that has as many elements", "of an image of as many"],
)
def test_scale_that_broadcasts(shape, axis, of_scale):
    x, scale, bias = normal(6, *shape), normal(7, *of_scale), normal(8, *of_scale)
    axes = tuple(range(axis % x.ndim, x.ndim))
    deviation = x - x.mean(axes, keepdims=True)
    expected = deviation / np.sqrt(x.var(axes, keepdims=True) + 1e-5) * scale + bias
    (y,) = run_ours("LayerNormalization", [x, scale, bias], opset=17, axis=axis)
    assert_same(y, expected, 1e-5, 1e-5)
    check("LayerNormalization", [x, scale], opset=17, axis=axis, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_root_mean_square_normalization(axis):
    x = normal(8, 3, 4, 30)
    scale = normal(9, *x.shape[axis:])
    check("RMSNormalization", [x, scale], opset=23, axis=axis, rtol=1e-5, atol=1e-6)
    check("SimplifiedLayerNormalization", [x, scale], opset=17, axis=axis, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64])
def test_roots_are_of_float32(kind):
    x, scale = normal(8, 3, 30).astype(kind), normal(9, 30).astype(kind)
    tolerances = {"rtol": 2e-3, "atol": 1e-3} if kind == np.float16 else {"rtol": 1e-6}
    check("SimplifiedLayerNormalization", [x, scale], outputs=2, **tolerances)


@pytest.mark.parametrize(("kind", "of_scale"), [(np.float16, np.float32), (np.float32, np.float64)])
def test_the_scale_tells_the_type(kind, of_scale):
    x, scale = normal(8, 3, 30).astype(kind), normal(9, 30).astype(of_scale)
    (y,) = run_ours("RMSNormalization", [x, scale], opset=23)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + np.float32(1e-5)) * scale
    assert_same(y, expected.astype(of_scale), 1e-5, 1e-6)


@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_all_outputs_of_skip_normalizations(op_type, kind):
    weights = [normal(3, 20)] * (2 if op_type == "SkipLayerNormalization" else 1)
    inputs = [x.astype(kind) for x in (normal(1, 2, 3, 20), normal(2, 2, 3, 20), *weights)]
    model = model_of(op_type, inputs, outputs=4, domain="com.microsoft", epsilon=1e-5)
    feeds = {f"x{place}": x for place, x in enumerate(inputs)}
    judged = onnxruntime_results(model, feeds)
    found = run_ours(op_type, inputs, outputs=4, domain="com.microsoft", epsilon=1e-5)
    tolerance = 2e-3 if kind == np.float16 else 1e-5
    for place in (0, 2, 3):  # onnxruntime leaves means as they lie
        assert_same(found[place], judged[place], tolerance, tolerance)
    assert found[1].dtype == np.float32


@pytest.mark.parametrize("with_bias", [True, False])
def test_skip_normalizations(with_bias):
    x, skip, gamma, beta = normal(1, 2, 3, 20), normal(2, 2, 3, 20), normal(3, 20), normal(4, 20)
    bias = [normal(5, 20)] if with_bias else []
    for op_type, weights in (
        ("SkipLayerNormalization", [gamma, beta]),
        ("SkipSimplifiedLayerNormalization", [gamma]),
    ):
        check(
            op_type,
            [x, skip, *weights, *bias],
            domain="com.microsoft",
            epsilon=1e-5,
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 5, 7), (1, 6, 2, 3, 4)])
def test_instance_normalization(shape):
    check(
        "InstanceNormalization",
        [normal(1, *shape) + 1, normal(2, 6), normal(3, 6)],
        epsilon=1e-3,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalization(opset, groups):
    x = normal(1, 2, 6, 5, 7) + 1
    count = groups if opset == 18 else 6
    scale, bias = normal(2, count), normal(3, count)
    (y,) = run_ours("GroupNormalization", [x, scale, bias], opset=opset, num_groups=groups)
    grouped = x.astype(np.float64).reshape(2, groups, -1)
    deviation = grouped - grouped.mean(-1, keepdims=True)
    unit = (deviation / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    per_channel = [np.repeat(p, 6 // count).reshape(6, 1, 1) for p in (scale, bias)]
    expected = unit * per_channel[0] + per_channel[1]
    assert_same(y, expected.astype(np.float32), 1e-5, 1e-5)


def test_groups_that_do_not_divide():
    with pytest.raises(CompileError, match="6 channels do not fall into 4 groups"):
        run_ours(
            "GroupNormalization", [normal(1, 2, 6, 3), normal(2, 6), normal(3, 6)], num_groups=4
        )


@pytest.mark.parametrize("shape", [(3, 6), (2, 6, 5), (2, 6, 5, 7)])
@pytest.mark.parametrize("opset", [7, 9, 15])
@pytest.mark.parametrize("constant", [True, False])
def test_batch_normalization(shape, opset, constant):
    x = normal(1, *shape)
    statistics = [normal(2, 6), normal(3, 6), normal(4, 6), np.abs(normal(5, 6)) + np.float32(0.1)]
    check(
        "BatchNormalization",
        [x, *statistics],
        opset=opset,
        constants=[1, 2, 3, 4] if constant else [],
        epsilon=1e-3,
        rtol=1e-5,
        atol=1e-5,
    )


def test_batch_normalization_in_training_is_refused():
    statistics = [normal(2, 6), normal(3, 6), normal(4, 6), np.abs(normal(5, 6))]
    with pytest.raises(CompileError, match="computes statistics"):
        run_ours("BatchNormalization", [normal(1, 3, 6), *statistics], training_mode=1, opset=15)


def trained(x, scale, bias, mean, variance, epsilon, momentum):
    """What the standard says of training mode, in float64."""
    x, scale, bias, mean, variance = (
        a.astype(np.float64) for a in (x, scale, bias, mean, variance)
    )
    axes = (0, *range(2, x.ndim))
    own_mean, own_variance = x.mean(axes), x.var(axes)
    spread = (1, -1, *[1] * (x.ndim - 2))
    deviation = np.sqrt(own_variance + epsilon).reshape(spread)
    y = (x - own_mean.reshape(spread)) / deviation * scale.reshape(spread) + bias.reshape(spread)
    running = [
        momentum * a + (1 - momentum) * b for a, b in ((mean, own_mean), (variance, own_variance))
    ]
    return [y, *running]


TRAINED = {np.float32: 2e-6, np.float64: 1e-12, np.float16: 1e-3}


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("dtype", list(TRAINED))
@pytest.mark.parametrize(
    "shape", [(7, 5), (3, 6, 10), (1, 3, 1), (2, 4, 5, 6), (1, 2, 3, 4, 5), (None, 3, None, 4)]
)
@pytest.mark.parametrize(("opset", "momentum"), [(14, 1.0), (15, 0.9), (22, 0.3)])
def test_batch_normalization_in_training(outputs, dtype, shape, opset, momentum):
    """Statistics of the input, whose mean is far from 0, and of what ran before."""
    sizes = [6 if size is None else size for size in shape]
    channels = [normal(seed, sizes[1], dtype=dtype) for seed in (2, 3, 4)]
    x = (normal(1, *sizes) * 2 + 30).astype(dtype)
    feeds = dict(
        zip("xsbmv", [x, *channels, np.abs(normal(5, sizes[1])).astype(dtype)], strict=True)
    )
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["y", "mean", "var"][:outputs]
    node = onnx.helper.make_node(
        "BatchNormalization",
        list("xsbmv"),
        names,
        "norm",
        training_mode=1,
        epsilon=1e-3,
        momentum=momentum,
    )
    inputs = [
        onnx.helper.make_tensor_value_info(name, element, shape if name == "x" else [sizes[1]])
        for name in "xsbmv"
    ]
    results = [onnx.helper.make_tensor_value_info(name, element, None) for name in names]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", inputs, results),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=8,
    )
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    answer = request.infer(feeds)
    found = [np.asarray(answer[place]) for place in range(outputs)]
    attributes = float(np.float32(1e-3)), float(np.float32(momentum))
    expected = trained(*feeds.values(), *attributes)
    for ours, exact in zip(found, expected, strict=False):
        assert ours.dtype == dtype
        scale = max(1, np.abs(exact).max())
        assert np.abs(ours - exact).max() <= TRAINED[dtype] * scale


@pytest.mark.parametrize("wrong", ["scale", "B", "mean", "var"])
@pytest.mark.parametrize("length", [1, 3, 6])
def test_statistics_of_other_channels_are_refused(wrong, length):
    sizes = {"scale": 4, "B": 4, "mean": 4, "var": 4, wrong: length}
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]>
        convolved (float[N,2,H,W] x, float[4,2,3,3] w) => (float[N,4,C,D] y)
        { a = Conv(x, w) y = BatchNormalization(a, scale, B, mean, var) }"""
    )
    for name, size in sizes.items():
        tensor = numpy_helper.from_array(np.ones(size, np.float32), name)
        model.graph.initializer.append(tensor)
    core = partita.Core()
    answer = core.query_model(core.read_model(model.SerializeToString()), "CPU")
    (reason,) = answer.reasons.values()
    assert reason.code is ReasonCode.UNSUPPORTED_SHAPE
    assert reason.detail == f"{wrong} has shape [{length}] for 4 channels"


@pytest.mark.parametrize("size", [1, 3, 4, 5])
@pytest.mark.parametrize("beta", [0.75, 0.5])
def test_local_response_normalization(size, beta):
    x = normal(1, 2, 7, 5, 20)
    (y,) = run_ours("LRN", [x], size=size, alpha=0.5, beta=beta, bias=1.5)
    squares = x.astype(np.float64) ** 2
    total = np.zeros_like(squares)
    for c in range(7):
        low, high = max(0, c - (size - 1) // 2), min(6, c + size // 2)
        total[:, c] = squares[:, low : high + 1].sum(1)
    expected = x / (1.5 + 0.5 / size * total) ** beta
    assert_same(y, expected.astype(np.float32), 2e-6, 1e-6)


def test_local_response_normalization_as_onnxruntime():
    check("LRN", [normal(1, 1, 20, 6, 6)], size=5, alpha=1e-3, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_norm_normalization(p, axis):
    x = normal(1, 4, 5, 6)
    x[:, 0, 0] = 0
    check("LpNormalization", [x], p=p, axis=axis, rtol=2e-6, atol=1e-6)


def test_norm_of_zeros():
    check("LpNormalization", [np.zeros((2, 3), np.float32)], axis=1)


@pytest.mark.parametrize("axes", [None, [1], [0, 2]])
def test_mean_variance_normalization(axes):
    attributes = {} if axes is None else {"axes": axes}
    x = normal(1, 3, 4, 5, 6) + 3
    check("MeanVarianceNormalization", [x], opset=13, rtol=1e-5, atol=1e-5, **attributes)


def test_nothing_to_normalize():
    empty = np.zeros((0, 4), np.float32)
    for op_type in ("LayerNormalization", "LpNormalization"):
        inputs = [empty, np.ones(4, np.float32)] if op_type.startswith("Layer") else [empty]
        assert run_ours(op_type, inputs)[0].shape == (0, 4)


def test_scales_that_do_not_fit_a_row():
    inputs = [normal(1, 4, 3, 5), normal(2, 3, 5), normal(3, 3, 0)]
    with pytest.raises(CompileError, match="bias does not broadcast"):
        run_ours("LayerNormalization", inputs, axis=1)
    with pytest.raises(CompileError, match="scale does not broadcast"):
        run_ours("LayerNormalization", [normal(1, 2, 3), normal(2, 2, 2, 3)], axis=1)
