"""Normalizations and Resize of device OPENCL against onnxruntime."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import partita

from ..comparison import (
    TILINGS,
    build,
    check,
    check_single,
    compiled,
    floats,
    int64s,
    integers,
    single,
)


@pytest.mark.parametrize("axis", [-1, 1, -2])
@pytest.mark.parametrize("biased", [True, False])
def test_layer_normalization(axis, biased):
    x = floats(3, 6, 40) * 3 + 1
    tail = x.shape[axis:]
    inputs = [x, floats(*tail, seed=1), *([floats(*tail, seed=2)] if biased else [])]
    check_single("LayerNormalization", inputs, {"axis": axis, "epsilon": 1e-4}, atol=1e-4)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("types", [(np.float32, np.float16), (np.float16, np.float32)])
def test_root_mean_square_of_mixed_types(axis, types):
    x, scale = floats(2, 3, 5).astype(types[0]), floats(*(2, 3, 5)[axis:], seed=1).astype(types[1])
    model, feeds = single("RMSNormalization", [x, scale], {"axis": axis}, opset=23)
    (y,) = compiled(model)(feeds).to_tuple()
    wide = x.astype(np.float64)
    along = tuple(range(axis % 3, 3))
    due = wide / np.sqrt((wide**2).mean(along, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(y.astype(np.float64), due, rtol=4e-3, atol=2e-3)


@pytest.mark.parametrize("shape", [(2, 5, 7, 6), (1, 3, 50)])
def test_instance_normalization(shape):
    channels = shape[1]
    inputs = [floats(*shape) + 2, floats(channels, seed=1), floats(channels, seed=2)]
    check_single("InstanceNormalization", inputs, {"epsilon": 1e-3}, atol=1e-4)


def test_group_normalization():
    inputs = [floats(2, 6, 5, 4), floats(6, seed=1), floats(6, seed=2)]
    check_single("GroupNormalization", inputs, {"num_groups": 3}, opset=21, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 6, 5001), (1, 4, 41, 67)])
def test_groups_of_items_share_a_long_row(shape):
    channels = shape[1]
    x = floats(*shape) + 1000.0  # squares of float32 would hide the variance
    scale, shift = floats(channels, seed=1), floats(channels, seed=2)
    model, feeds = single("GroupNormalization", [x, scale, shift], {"num_groups": 1}, opset=21)
    wide, lined = x.astype(np.float64), (1, channels, *(1,) * (len(shape) - 2))
    due = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    due = due * scale.reshape(lined) + shift.reshape(lined)
    for tiling in TILINGS:
        found = compiled(model, TILING=tiling)(feeds)[0]
        np.testing.assert_allclose(found, due, atol=1e-3)


def test_rms_normalization_against_its_definition():
    x, scale = floats(4, 33), floats(33, seed=1)
    model, feeds = single("RMSNormalization", [x, scale], {"epsilon": 1e-5}, opset=23)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale
    found = compiled(model).infer_new_request(feeds)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("depth", [33, 2048])
def test_simplified_layer_normalization(dtype, depth):
    inputs = [floats(2, 3, depth).astype(dtype), floats(depth, seed=1).astype(dtype)]
    tolerance = 1e-4 if dtype == np.float32 else 4e-3
    attrs = {"epsilon": 1e-5}
    check_single("SimplifiedLayerNormalization", inputs, attrs, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("skip", [(2, 3, 40), (1, 3, 40), (3, 40)])
def test_normalization_of_a_sum(dtype, biased, skip):
    inputs = [floats(2, 3, 40), floats(*skip, seed=1), floats(40, seed=2), floats(40, seed=3)]
    inputs = [x.astype(dtype) for x in inputs[: 3 + biased]]
    names = [f"x{place}" for place in range(len(inputs))]
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization",
        names,
        ["y", "", "", "sum"],
        domain="com.microsoft",
        epsilon=1e-5,
    )
    feeds = dict(zip(names, inputs, strict=True))
    tolerance = 1e-4 if dtype == np.float32 else 4e-3
    check(build([node], feeds, ["y", "sum"]), feeds, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_sums_of_what_does_not_fit(place):
    inputs = [floats(2, 3, 40), floats(2, 3, 40), floats(40), floats(40)]
    inputs[place] = floats(3)
    attrs = {"domain": "com.microsoft"}
    model, feeds = single("SkipSimplifiedLayerNormalization", inputs, attrs)
    with pytest.raises(partita.PartitaError, match="broadcast"):
        compiled(model).infer_new_request(feeds)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_local_response_normalization(size):
    attrs = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
    check_single("LRN", [floats(2, 7, 4, 5)], attrs)


TRANSFORMATIONS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
SIZES = [(1, 2, 9, 10), (1, 2, 3, 4), (1, 2, 5, 1)]


def resize(x, attrs, scales=None, sizes=None, roi=None, opset=18, dtype=np.float32):
    inputs = [
        x,
        None if roi is None else np.array(roi, np.float32),
        None if scales is None else np.array(scales, np.float32),
        None if sizes is None else int64s(*sizes),
    ]
    constant = [i for i in (1, 2, 3) if inputs[i] is not None]
    check_single("Resize", inputs, attrs, constant=constant, opset=opset, atol=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", SIZES)
def test_resize_by_sizes(transformation, mode, sizes):
    attrs = {"mode": mode, "coordinate_transformation_mode": transformation}
    resize(floats(1, 2, 5, 6), attrs, sizes=sizes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.6, 1.7)])
def test_resize_by_scales(mode, scales):
    resize(floats(1, 2, 5, 6), {"mode": mode}, scales=scales)


def test_scales_may_be_an_input():
    """Read when the image comes; others make another program."""
    model, feeds = single("Resize", [floats(1, 2, 5, 6), None, np.float32([1, 1, 2, 2])])
    check(model, feeds, feeds | {"x2": np.float32([1, 1, 3, 1])}, feeds)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("transformation", ["half_pixel", "asymmetric", "align_corners"])
def test_resize_nearest_modes(nearest, transformation):
    attrs = {
        "mode": "nearest",
        "nearest_mode": nearest,
        "coordinate_transformation_mode": transformation,
    }
    resize(floats(1, 1, 6, 8), attrs, scales=(1, 1, 1.5, 0.5))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_corners_are_aligned_by_the_size_before_it_is_rounded(mode):
    x, scales = floats(1, 1, 6, 7), np.array([1, 1, 1.7, 0.5], np.float32)
    attrs = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    model, feeds = single("Resize", [x, None, scales], attrs, constant=(2,))
    (want,) = ReferenceEvaluator(model).run(None, feeds)  # onnxruntime goes by the rounded one
    np.testing.assert_allclose(compiled(model)(feeds)[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_coordinate_upon_an_element_takes_it_whatever_its_neighbours_are(mode, value):
    x, scales = floats(1, 1, 4, 5), np.array([1, 1, 2, 2], np.float32)
    x[0, 0, 2, 2] = value
    attrs = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    model, feeds = single("Resize", [x, None, scales], attrs, constant=(2,))
    np.testing.assert_array_equal(compiled(model)(feeds)[0][:, :, ::2, ::2], x)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_of_a_region(mode):
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.0,
    }
    roi = (0, 0, 0.2, -0.1, 1, 1, 0.7, 1.2)
    resize(floats(1, 1, 6, 7), attrs, sizes=(1, 1, 5, 9), roi=roi)


def test_resize_cubic_without_the_outside():
    attrs = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    resize(floats(1, 2, 5, 6), attrs, sizes=(1, 2, 9, 4))


def test_resize_of_one_and_of_three_dimensions():
    resize(floats(1, 2, 9), {"mode": "linear"}, sizes=(1, 2, 15))
    resize(floats(1, 2, 3, 4, 5), {"mode": "linear"}, sizes=(1, 2, 6, 5, 3))
    resize(floats(2, 3, 4, 5), {"mode": "nearest"}, sizes=(4, 3, 8, 5))


def test_resize_by_axes():
    resize(floats(1, 2, 5, 6), {"mode": "linear", "axes": [3, 2]}, sizes=(4, 9))


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_that_keeps_the_aspect_ratio(policy):
    attrs = {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    resize(floats(1, 1, 6, 8), attrs, sizes=(10, 9))


def test_resize_of_integers():
    x = integers(1, 2, 4, 5, low=0, high=99, dtype=np.uint8)
    resize(x, {"mode": "nearest"}, scales=(1, 1, 2, 2))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_old_resize_and_upsample(mode, scale):
    scales = np.array([1, 1, scale, scale], np.float32)
    inputs = [floats(1, 2, 4, 6), scales]
    check_single("Resize", inputs, {"mode": mode}, constant=(1,), opset=10)
    if scale > 1:
        check_single("Upsample", inputs, {"mode": mode}, constant=(1,), opset=9)
