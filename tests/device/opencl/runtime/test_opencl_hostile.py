"""Values and attributes that are out of all bounds: an answer or an error, soon, and no crash."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita.errors import PartitaError
from partita_opencl.runtime import host_folding

from ..comparison import TILINGS, build, check, check_single, compiled, floats, single

WINDOWS = [
    ("AveragePool", [floats(1, 2, 5, 6)], {"kernel_shape": [3, 3], "pads": [1, 2, 1, 0]}),
    ("MaxPool", [floats(1, 2, 5, 6)], {"kernel_shape": [2, 3], "strides": [2, 1]}),
    ("Conv", [floats(1, 2, 5, 6), floats(3, 2, 3, 3)], {}),
    ("ConvTranspose", [floats(1, 2, 5, 6), floats(2, 3, 3, 3)], {}),
    ("Resize", [floats(1, 2, 5, 6), None, np.array([1, 1, 2, 3], np.float32)], {"mode": "linear"}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attrs"), WINDOWS)
def test_windows_over_constants_are_computed_by_the_device(monkeypatch, op_type, inputs, attrs):
    """The host evaluates them in Python, one by one: minutes, with a pad of millions."""

    def never(node, arrays):
        raise AssertionError(f"{node.op_type} was evaluated by the host")

    monkeypatch.setattr(host_folding, "reference_fold", never)
    constant = [i for i, x in enumerate(inputs) if x is not None]
    model, _ = single(op_type, inputs, attrs, constant=constant)
    check(model, {})


@pytest.mark.parametrize("which", [1, 2])
def test_sizes_and_scales_that_are_one_number(which):
    """A scalar was no list; as a row of one number it fits a tensor of one dimension."""
    inputs = [floats(5), None, None, None][: which + 2]
    inputs[which + 1] = np.array(2, np.float32) if which == 1 else np.array(10, np.int64)
    model, feeds = single("Resize", inputs, constant=[which + 1])
    (found,) = compiled(model)(feeds).values()
    np.testing.assert_array_equal(found, np.repeat(inputs[0], 2))


@pytest.mark.parametrize("axis", [0, -1])
def test_constants_gathered_by_element(axis):
    """Indices may be fewer than the data beside the axis."""
    inputs = [floats(4, 5), np.array([[0, -1, 2], [3, 1, -4]])]
    model, _ = single("GatherElements", inputs, {"axis": axis}, constant=[0, 1])
    check(model, {})


@pytest.mark.parametrize("others", [np.float32, np.int8])
def test_tensors_of_several_types_are_not_joined(others):
    """Elements of four bytes were written to a result of one byte each, and beyond it."""
    first = np.int8 if others is np.float32 else np.float32
    parts = [np.ones(4, first), np.ones(4096, others)]
    model, feeds = single("Concat", parts, {"axis": 0})
    with pytest.raises(PartitaError, match="are float32 and int8; expected one type"):
        compiled(model)(feeds)


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (np.zeros(0, np.float32), "by 0 elements of float32; it must be"),
        (np.ones((), np.float16), "are float16 and float32; expected one type"),
    ],
)
def test_a_border_is_of_one_element_of_the_type_of_the_tensor(fill, message):
    model, feeds = single("Pad", [floats(3), np.array([1, 1]), fill], constant=[1])
    with pytest.raises(PartitaError, match=message):
        compiled(model)(feeds)


def test_images_of_more_pixels_than_kernels_count():
    attrs = {"kernel_shape": [1, 1], "pads": [1 << 15] * 4}
    model, _ = single("MaxPool", [floats(1, 1, 5, 5)], attrs)
    with pytest.raises(PartitaError, match="pixels; device OPENCL takes 2147483647"):
        compiled(model)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("tiling", TILINGS)
def test_what_is_added_to_a_convolution_is_repeated_if_it_is_smaller(op_type, tiling):
    """Both are of N images by the model's account, but one of 64 and the other of one."""
    x, r, w = floats(64, 8, 16, 16), floats(1, 8, 16, 16, seed=1), floats(8, 8, 1, 1, seed=2)
    nodes = [
        helper.make_node(op_type, ["x", "w"], ["c"]),
        helper.make_node("Relu", ["r"], ["q"]),
        helper.make_node("Add", ["c", "q"], ["y"]),
    ]
    model = build(nodes, {"x": x, "r": r}, ["y"], [numpy_helper.from_array(w, "w")])
    for port in model.graph.input:
        port.type.tensor_type.shape.dim[0].dim_param = "N"
    (found,) = compiled(model, TILING=tiling)({"x": x, "r": r}).values()
    letters = "oc,nchw->nohw" if op_type == "Conv" else "co,nchw->nohw"
    wanted = np.einsum(letters, w[:, :, 0, 0], x) + np.maximum(r, 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_what_is_added_to_a_convolution_is_not_larger():
    x, r, w = floats(1, 8, 4, 4), floats(3, 8, 4, 4), floats(8, 8, 1, 1)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "r"], "y")]
    model = build(nodes, {"x": x, "r": r}, ["y"], [numpy_helper.from_array(w, "w")])
    for port in model.graph.input:
        port.type.tensor_type.shape.dim[0].dim_param = "N"
    with pytest.raises(PartitaError, match=r"\[3, 8, 4, 4\] does not broadcast to \[1, 8, 4, 4\]"):
        compiled(model)({"x": x, "r": r})


def test_single_pixels_are_stepped_over_where_padding_makes_up_for_it():
    """As many windows as pixels, but they are every second pixel and then zeros."""
    inputs = [floats(1, 3, 5, 5), floats(4, 3, 1, 1)]
    check_single("Conv", inputs, {"strides": [2, 2], "pads": [0, 0, 4, 4]})


def test_padded_images_of_more_elements_than_kernels_count():
    """Places in a padded image are numbers of 32 bits."""
    attrs = {"pads": [1 << 16] * 4, "strides": [1 << 17] * 2}
    model, feeds = single("Conv", [floats(1, 2, 5, 5), floats(2, 2, 3, 3)], attrs, constant=[1])
    with pytest.raises(PartitaError, match="device OPENCL takes 2147483647"):
        compiled(model)(feeds)


@pytest.mark.parametrize("value", [300.0, -1.0, np.inf, np.nan])
def test_places_outside_take_a_number_that_the_type_has(value):
    """The host's cast made anything of it."""
    attrs = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": float(value),
    }
    region, scales = np.array([-1, 2], np.float32), np.array([2], np.float32)
    model, _ = single("Resize", [np.ones(3, np.uint8), region, scales], attrs, constant=[1, 2])
    with pytest.raises(PartitaError, match=f"extrapolation_value {value}, which uint8 does not"):
        compiled(model)


def test_planes_of_more_elements_than_float32_counts_are_picked_whole():
    """From 2**24 on, places that were computed in float32 were those of a neighbour."""
    x = (np.arange((1 << 24) + 10) % 251).astype(np.uint8)[None]
    model, feeds = single("Resize", [x, None, np.array([2, 1], np.float32)], constant=[2])
    (found,) = compiled(model)(feeds).values()
    np.testing.assert_array_equal(found, np.repeat(x, 2, axis=0))
