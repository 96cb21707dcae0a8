"""Resize, GridSample and DeformConv of device REFERENCE, and of CPU, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import partita

CUBIC = {"mode": "cubic"}


def made(op_type, opset, arrays, given):
    """A model of one operation, and its inputs; one that is ``None`` is left out."""
    feeds = {f"i{n}": a for n, a in enumerate(arrays) if a is not None}
    names = [f"i{n}" if a is not None else "" for n, a in enumerate(arrays)]
    element = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **given)],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [helper.make_tensor_value_info("y", element, None)],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


def computed(device, proto, feeds):
    return partita.Core().compile_model(proto, device)(feeds).to_tuple()[0]


def agree(op_type, opset, arrays, given, atol=1e-5):
    """Devices have what onnxruntime has; an input that is ``None`` is left out."""
    proto, feeds = made(op_type, opset, arrays, given)
    due = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)[0]
    for device in ("REFERENCE", "CPU"):
        found = computed(device, proto, feeds)
        assert found.shape == due.shape, device
        np.testing.assert_allclose(found, due, rtol=1e-4, atol=atol, err_msg=device)


def floats(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "nearest"},
        {"mode": "nearest", "nearest_mode": "ceil"},
        {"mode": "linear"},
        {"mode": "cubic"},
        {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "antialias": 1},
    ],
)
@pytest.mark.parametrize(
    ("scales", "sizes"),
    [
        ([1, 1, 0.25, 0.15], None),  # 1 and 1.05 elements
        ([1, 1, 2.5, 0.15], None),
        ([1, 1, 0.375, 1.5], None),
        (None, [1, 1, 1, 1]),
        (None, [1, 1, 1, 11]),
        (None, [1, 1, 3, 1]),
    ],
)
def test_one_element_of_pytorch_half_pixel_is_the_first(scales, sizes, given):
    factors = None if scales is None else np.array(scales, np.float32)
    lengths = None if sizes is None else np.array(sizes, np.int64)
    given = {**given, "coordinate_transformation_mode": "pytorch_half_pixel"}
    agree("Resize", 19, [floats(1, 1, 4, 7), None, factors, lengths], given)


CROPPED = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
ROI = [0, 0, 0.125, 0.25, 1, 1, 0.75, 1.125]


@pytest.mark.parametrize(
    ("given", "roi", "scales", "sizes"),
    [
        # Lengths that are no whole numbers: those of the result count.
        ({**CROPPED, "mode": "linear"}, ROI, [1, 1, 1.3, 0.3], None),
        ({**CROPPED, "mode": "cubic", "antialias": 1}, ROI, [1, 1, 0.6, 2.1], None),
        ({**CROPPED, "mode": "nearest", "nearest_mode": "floor"}, ROI, [1, 1, 3.7, 2.1], None),
        # One element is taken from the region's middle.
        ({**CROPPED, "mode": "linear"}, ROI, [1, 1, 0.25, 0.15], None),
        # A place that rounding puts by an ulp beside an element.
        (
            {
                "mode": "linear",
                "coordinate_transformation_mode": "half_pixel_symmetric",
                "keep_aspect_ratio_policy": "not_smaller",
                "axes": [2, 3],
            },
            None,
            None,
            [1, 1],
        ),
        # One element, by a scale that is not its own.
        *(
            (
                {
                    "mode": mode,
                    "antialias": 1,
                    "coordinate_transformation_mode": "pytorch_half_pixel",
                    "keep_aspect_ratio_policy": policy,
                    "axes": [2, 3],
                },
                None,
                None,
                [1, 1],
            )
            for mode in ("linear", "cubic")
            for policy in ("not_larger", "not_smaller")
        ),
        # Halves and whole numbers by the scales as written, which float32 does not hold.
        ({"mode": "nearest"}, None, [1, 1, 3.7, 2.1], None),
        (
            {
                "mode": "nearest",
                "nearest_mode": "floor",
                "coordinate_transformation_mode": "asymmetric",
            },
            None,
            [1, 1, 0.6, 0.6],
            None,
        ),
    ],
)
def test_images_are_resized_by_the_text(given, roi, scales, sizes):
    inputs = [
        floats(1, 2, 5, 7),
        None if roi is None else np.array(roi, np.float32),
        None if scales is None else np.array(scales, np.float32),
        None if sizes is None else np.array(sizes, np.int64),
    ]
    agree("Resize", 19, inputs, given)


def test_places_of_tensorflow_1_are_half_an_element_further():
    given = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    none, scales = np.zeros(0, np.float32), np.array([1, 1, 2, 0.5], np.float32)
    agree("Resize", 11, [floats(1, 1, 4, 6), none, scales], given)


def test_axes_of_a_resize_counted_from_behind():
    given = {"mode": "linear", "axes": [-1, 2]}  # with a policy onnxruntime misreads these
    agree("Resize", 19, [floats(1, 2, 4, 7), None, None, np.array([5, 9], np.int64)], given)
    given = {"mode": "linear", "axes": [-2], "coordinate_transformation_mode": "pytorch_half_pixel"}
    agree("Resize", 19, [floats(1, 2, 4, 7), None, np.array([0.25], np.float32)], given)


@pytest.mark.parametrize(
    "given",
    [
        *({"mode": "nearest", "nearest_mode": mode} for mode in ("floor", "ceil")),
        *({"mode": mode} for mode in ("linear", "cubic")),  # no coordinate lies upon an element
    ],
)
def test_infinite_elements_of_an_image_stay_infinite(given):
    x = floats(1, 2, 5, 5)
    x[0, 0, 2, 2], x[0, 1, 2, 2] = np.inf, -np.inf
    agree("Resize", 19, [x, None, np.array([1, 1, 2, 2], np.float32)], given)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("given", [{"mode": "linear"}, {"mode": "cubic"}])
def test_coordinates_upon_an_element_take_it_whatever_its_neighbours_are(given, axis, value):
    x = floats(1, 3, 6, 6)
    x[0, :, 3, 3] = value
    scales = np.ones(4, np.float32)
    scales[axis] = 2
    given = {**given, "coordinate_transformation_mode": "asymmetric"}
    found = computed("CPU", *made("Resize", 19, [x, None, scales], given))
    np.testing.assert_array_equal(np.take(found, range(0, 12, 2), axis), x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_images_beyond_their_type_become_infinite(dtype):
    """Cubic interpolation overshoots."""
    x = np.full((1, 1, 1, 8), np.finfo(dtype).max, dtype)
    x[..., :4] = -x[..., :4]
    proto, feeds = made("Resize", 19, [x, None, np.array([1, 1, 1, 2], np.float32)], CUBIC)
    for device in ("REFERENCE", "CPU"):
        found = computed(device, proto, feeds)
        assert np.isposinf(found).any(), device
        assert np.isneginf(found).any(), device


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("size", [(1, 5), (4, 1), (1, 1)])
def test_images_of_one_row_or_column_reflect_that(size, mode, aligned):
    grid = np.random.default_rng(1).uniform(-2.5, 2.5, (2, 3, 4, 2)).astype(np.float32)
    given = {"mode": mode, "padding_mode": "reflection", "align_corners": aligned}
    agree("GridSample", 20, [floats(2, 3, *size), grid], given)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("size", [(1, 5), (4, 6)])
def test_cubic_samples_beside_the_image(size, padding, aligned):
    grid = np.random.default_rng(1).uniform(-2.5, 2.5, (2, 7, 5, 2)).astype(np.float32)
    given = {"mode": "cubic", "padding_mode": padding, "align_corners": aligned}
    agree("GridSample", 20, [floats(2, 3, *size), grid], given, atol=1e-4)


@pytest.mark.parametrize("size", [(1, 6), (5, 1), (5, 6)])
@pytest.mark.parametrize(
    ("given", "out"),
    [
        ({"pads": [1, 1, 1, 1]}, (0, 0)),
        ({"pads": [1, 1, 1, 1], "group": 2, "offset_group": 2}, (0, 0)),
        ({"pads": [2, 2, 2, 2], "dilations": [2, 2]}, (0, 0)),
        ({"pads": [2, 1, 2, 2]}, (2, 1)),
    ],
)
def test_deformed_convolutions(size, given, out):
    rng = np.random.default_rng(5)
    parts, out = given.get("offset_group", 1), [n + more for n, more in zip(size, out, strict=True)]
    offsets = (rng.standard_normal((2, 18 * parts, *out)) * 2).astype(np.float32)
    masks = rng.random((2, 9 * parts, *out)).astype(np.float32)
    w = floats(6, 4 // given.get("group", 1), 3, 3)
    for arrays in (
        [floats(2, 4, *size), w, offsets],
        [floats(2, 4, *size), w, offsets, floats(6), masks],
    ):
        agree("DeformConv", 19, arrays, {**given, "kernel_shape": [3, 3]})


def test_infinite_factors_of_what_is_read_beside_the_image():
    """Nothing is there but zeros, and 0 times infinity is no number."""
    offsets, masks = np.zeros((1, 2, 4, 4), np.float32), np.ones((1, 1, 4, 4), np.float32)
    offsets[0, :, 1, 2] = 50
    masks[0, 0, 1, 2], masks[0, 0, 3, 0] = np.inf, np.inf
    arrays = [floats(1, 2, 4, 4), floats(3, 2, 1, 1), offsets, None, masks]
    agree("DeformConv", 19, arrays, {"kernel_shape": [1, 1]})
