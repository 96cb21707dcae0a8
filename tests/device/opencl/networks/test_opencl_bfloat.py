"""Models computed in bfloat16 on device OPENCL, against float32 results."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ..comparison import TILINGS, build, compiled, expected, floats, single

BOUND = 1.5e-2


def check(model, feeds, bound=BOUND, tilings=TILINGS):
    """Compares with onnxruntime; returns the options of the last plan's kernels."""
    wanted = expected(model, feeds)
    for tiling in tilings:
        built = compiled(model, INFERENCE_PRECISION_HINT="bf16", TILING=tiling)
        request = built.create_infer_request()
        for found, one in zip(request.infer(feeds).to_tuple(), wanted, strict=True):
            assert np.array(found).dtype == one.dtype
            assert np.linalg.norm(found - one) <= bound * np.linalg.norm(one)
    return [name for step in request.explain_execution().steps for name in step.options]


SINGLES = [
    ("MatMul", [floats(9, 80), floats(80, 40, seed=1)], {}),
    ("MatMul", [floats(1, 200), floats(200, 33, seed=1)], {}),
    ("Conv", [floats(1, 32, 9, 12), floats(6, 32, 3, 3, seed=1), floats(6)], {}),
    ("Conv", [floats(1, 6, 8, 9), floats(6, 1, 3, 3, seed=1)], {"group": 6}),
    ("PRelu", [floats(4, 5), floats(1, seed=1)], {}),
    ("Softmax", [floats(3, 70)], {}),
    ("Concat", [floats(3, 4), floats(3, 2, seed=1)], {"axis": 1}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attrs"), SINGLES)
def test_operators(op_type, inputs, attrs):
    model, feeds = single(op_type, inputs, attrs, constant=range(1, len(inputs)))
    options = check(model, feeds)
    assert "BFLOAT" in options or op_type == "PRelu"  # that is one chain of float32


def test_what_halves_cannot_hold():
    model, feeds = single("Add", [floats(4, 5) * 1e6, floats(5, seed=1) * 1e9])
    check(model, feeds, bound=5e-3)
    x = np.array([np.inf, -np.inf, np.nan, 0.0, 3e38], np.float32)
    model, feeds = single("Neg", [x])
    found = np.array(
        compiled(model, INFERENCE_PRECISION_HINT="bf16").create_infer_request().infer(feeds)[0]
    )
    np.testing.assert_allclose(found, -x, rtol=4e-3)


@pytest.mark.parametrize("tiling", TILINGS)
def test_every_nan_stays(tiling):
    x = floats(5, 80)
    nans = [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF80FFFF]
    x.view(np.uint32)[:4, 7], x.view(np.uint32)[4, 78] = nans[:4], nans[4]
    model, feeds = single("MatMul", [x, floats(80, 40, seed=1)], constant=(1,))
    how = {"INFERENCE_PRECISION_HINT": "bf16", "TILING": tiling}
    assert np.isnan(np.array(compiled(model, **how).infer_new_request(feeds)[0])).all()


def test_models_of_halves_stay_halves():
    x = floats(2, 5, 8).astype(np.float16) / 3
    model, feeds = single("Add", [x, x])
    found = compiled(model, INFERENCE_PRECISION_HINT="bf16").create_infer_request().infer(feeds)[0]
    np.testing.assert_array_equal(np.array(found), x + x)


@pytest.mark.usefixtures("matrix_units")
def test_images_with_channels_last():
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1], group=16),
        helper.make_node("Conv", ["c", "w2"], ["d"]),
        helper.make_node("Add", ["d", "b"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["y"]),
    ]
    shapes = {"w0": (16, 3, 3, 3), "w1": (16, 1, 3, 3), "w2": (16, 16, 1, 1)}
    constants = [
        numpy_helper.from_array(floats(*s, seed=i) * np.float32(np.prod(s[1:]) ** -0.5), n)
        for i, (n, s) in enumerate(shapes.items())
    ]
    feeds = {"x": floats(1, 3, 12, 10)}
    options = check(build(nodes, feeds, ["y"], constants), feeds, 3e-2, ["LOCAL"])
    assert "TAPS" in options


@pytest.mark.usefixtures("matrix_units")
def test_products_and_normalization():
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("LayerNormalization", ["b", "s"], ["c"]),
        helper.make_node("MatMul", ["c", "w1"], ["y"]),
    ]
    arrays = {"w0": floats(64, 64) / 8, "s": floats(64, seed=1), "w1": floats(64, 24, seed=2) / 8}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    feeds = {"x": floats(1, 9, 64)}
    check(build(nodes, feeds, ["y"], constants), feeds, tilings=["LOCAL"])


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize(("rows", "depth", "columns"), [(37, 200, 72), (5, 2048, 18), (2, 8, 2)])
def test_float32_by_three_products(rows, depth, columns):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Add", ["c", "r"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    arrays = {"w": floats(depth, columns) * np.float32(depth**-0.5), "b": floats(columns, seed=1)}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    feeds = {"x": floats(rows, depth, seed=2), "r": floats(rows, columns, seed=3)}
    model = build(nodes, feeds, ["y"], constants)
    how = {"INFERENCE_PRECISION_HINT": "bf16x3", "TILING": "LOCAL", "PERF_COUNT": True}
    request = compiled(model, **how).create_infer_request()
    found = np.array(request.infer(feeds)[0])
    wide = {name: array.astype(np.float64) for name, array in {**arrays, **feeds}.items()}
    wanted = np.maximum(wide["x"] @ wide["w"] + wide["b"] + wide["r"], 0)
    assert np.linalg.norm(found - wanted) <= 2e-5 * np.linalg.norm(wanted)
    kernels = "+".join(info.exec_type for info in request.get_profiling_info())
    assert "split_halves" in kernels
    assert "product_stream" in kernels


@pytest.mark.usefixtures("matrix_units")
def test_three_products_of_what_has_no_end():
    x = floats(3, 16)
    x[0, 2], x[1, 3] = np.inf, np.nan
    w = np.abs(floats(16, 4, seed=1)) + 1
    model, feeds = single("MatMul", [x, w], constant=(1,))
    how = {"INFERENCE_PRECISION_HINT": "bf16x3", "TILING": "LOCAL"}
    found = np.array(compiled(model, **how).create_infer_request().infer(feeds)[0])
    assert np.isposinf(found[0]).all() or np.isnan(found[0]).all()
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[2], x[2] @ w, rtol=1e-4)


@pytest.mark.parametrize("tiling", TILINGS)
def test_rows_are_normalized_without_matrix_units(tiling):
    arrays = [floats(10, 40), floats(40, seed=1), floats(40, seed=2)]
    model, feeds = single("LayerNormalization", arrays, constant=(1, 2))
    [wanted] = expected(model, feeds)
    how = {"INFERENCE_PRECISION_HINT": "bf16", "TILING": tiling}
    found = compiled(model, **how).create_infer_request().infer(feeds)[0]
    assert np.linalg.norm(np.array(found) - wanted) <= 1e-2 * np.linalg.norm(wanted)
