"""Convolutions of device OPENCL, by tiles and by registers, against onnxruntime."""

import itertools

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ..comparison import build, check, check_single, compiled, expected, floats, single

CONVOLUTIONS = [
    # input, weights, attributes
    ((1, 3, 9, 11), (5, 3, 3, 3), {}),
    ((2, 3, 16, 15), (8, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 16, 14, 14), (33, 16, 1, 1), {}),
    ((1, 16, 14, 14), (33, 16, 1, 1), {"strides": [2, 2]}),
    ((1, 4, 20, 20), (6, 4, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ((1, 4, 12, 13), (6, 4, 3, 2), {"pads": [0, 1, 2, 1], "dilations": [2, 3]}),
    ((2, 6, 10, 10), (9, 2, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ((1, 6, 10, 10), (12, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ((2, 7, 9, 9), (7, 1, 5, 5), {"group": 7, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 1, 12, 12), (3, 1, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((1, 3, 12, 12), (3, 3, 3, 3), {"auto_pad": "VALID"}),
    ((2, 5, 40), (7, 5, 3), {"pads": [2, 0], "strides": [3]}),
    ((2, 6, 40), (6, 1, 4), {"group": 6, "dilations": [2]}),
    ((1, 3, 6, 7, 5), (4, 3, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 0], "strides": [1, 2, 1]}),
    ((1, 4, 5, 6, 4), (4, 1, 2, 3, 2), {"group": 4}),
    ((1, 300, 5, 5), (20, 300, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((0, 3, 9, 9), (5, 3, 3, 3), {}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_conv(x, w, attrs):
    inputs = [floats(*x), floats(*w, seed=1), floats(w[0], seed=2)]
    check_single("Conv", inputs, attrs, constant=(1, 2), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", [1, 6, 7])
def test_conv_with_weights_given_at_run_time(case):
    x, w, attrs = CONVOLUTIONS[case]
    check_single("Conv", [floats(*x), floats(*w, seed=1)], attrs, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_bias_residual_and_activation(groups):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], group=groups, pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["a", "r"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(floats(8, 8 // groups, 3, 3, seed=1), "w"),
        numpy_helper.from_array(floats(8, seed=2), "b"),
    ]
    feeds = {"x": floats(2, 8, 9, 10), "r": floats(2, 8, 9, 10, seed=3)}
    check(build(nodes, feeds, ["y"], weights), feeds, atol=1e-4)


def test_batch_normalization_is_folded():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Clip", ["n", "low", "high"], ["y"]),
    ]
    arrays = {
        "w": floats(8, 3, 3, 3, seed=1),
        "s": floats(8, seed=2),
        "b": floats(8, seed=3),
        "m": floats(8, seed=4),
        "v": floats(8, seed=5) ** 2,
        "low": floats() * 0,
        "high": floats() * 0 + 6,
    }
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    feeds = {"x": floats(1, 3, 12, 12)}
    check(build(nodes, feeds, ["y"], weights), feeds, atol=1e-4)


TRANSPOSED = [
    ((1, 4, 7, 8), (4, 5, 3, 3), {}),
    ((2, 4, 7, 8), (4, 5, 2, 2), {"strides": [2, 2]}),
    ((1, 4, 7, 8), (4, 6, 3, 4), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((1, 4, 5, 5), (4, 3, 3, 3), {"strides": [2, 2], "output_padding": [1, 1], "group": 2}),
    ((1, 4, 5, 5), (4, 3, 3, 3), {"dilations": [2, 2]}),
    ((1, 4, 5, 5), (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 4, 5, 5), (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 4, 5, 5), (4, 3, 3, 3), {"strides": [2, 2], "output_shape": [10, 11]}),
    ((2, 3, 9), (3, 6, 4), {"strides": [2], "pads": [1, 1]}),
    ((1, 10, 20), (10, 5, 16), {"strides": [8], "pads": [4, 4]}),
    ((2, 5, 6), (5, 3, 2), {"strides": [3], "output_padding": [1]}),
    ((1, 5, 3, 4, 6), (5, 3, 2, 2, 2), {"strides": [2, 2, 2]}),
    ((2, 4, 3, 4, 2), (4, 3, 3, 2, 4), {"strides": [1, 2, 3], "pads": [1, 0, 2, 0, 1, 1]}),
    ((1, 4, 3, 3, 4), (4, 3, 2, 3, 2), {"dilations": [1, 2, 1], "group": 2}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_conv_transpose(x, w, attrs):
    bias = floats(w[1] * attrs.get("group", 1), seed=2)
    inputs = [floats(*x), floats(*w, seed=1), bias]
    check_single("ConvTranspose", inputs, attrs, constant=(1, 2), atol=1e-4)


@pytest.mark.parametrize(("groups", "kernel"), [(1, "product_tile"), (2, "conv_transpose")])
@pytest.mark.parametrize("spatial", [(9,), (5, 6)])
def test_transposed_convolutions_of_blocks_are_products(groups, kernel, spatial):
    rank = len(spatial)
    arrays = [floats(2, 6, *spatial), floats(6, 5, *[4] * rank, seed=1), floats(5 * groups, seed=2)]
    attrs = {"strides": [2] * rank, "pads": [1] * 2 * rank, "group": groups}
    model, feeds = single("ConvTranspose", arrays, attrs, constant=(1, 2))
    request = compiled(model, TILING="LOCAL", PERF_COUNT=True).create_infer_request()
    (found,) = request.infer(feeds).values()
    np.testing.assert_allclose(found, expected(model, feeds)[0], rtol=1e-4, atol=1e-4)
    (info,) = request.get_profiling_info()
    assert info.exec_type.split("+")[0] == kernel


@pytest.mark.parametrize("tiling", ["LOCAL", "REGISTERS"])
def test_convolutions_alike_share_the_table_of_their_taps(tiling):
    def constants_of(count):
        names = ["x", *(f"v{n}" for n in range(1, count)), "y"]
        nodes = [
            helper.make_node("Conv", [a, f"w{n}"], [b], pads=[7] * 4)
            for n, (a, b) in enumerate(itertools.pairwise(names))
        ]
        weights = [
            numpy_helper.from_array(floats(8, 8, 15, 15, seed=n) / np.float32(42), f"w{n}")
            for n in range(count)
        ]
        model = build(nodes, {"x": floats(1, 8, 6, 7)}, ["y"], weights)
        check(model, {"x": floats(1, 8, 6, 7, seed=4)})
        (plan,) = compiled(model, TILING=tiling).device_model.plans.values()
        return plan.constants.nbytes

    smallest = 4 * 4 * 15 * 15  # a row of four integers for each tap
    assert constants_of(1) >= smallest
    assert constants_of(4) - constants_of(1) < smallest  # a border's zero each, where there are any
