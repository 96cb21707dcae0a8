"""Preprocessing folded into models computes what numpy, Pillow and the formulas of colours say.

The models run on onnxruntime.
"""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image

import partita
from partita import Type
from partita.errors import ModelError
from partita.preprocess import ColorFormat, PaddingMode, PrePostProcessor, ResizeAlgorithm

RNG = np.random.default_rng(0)


def relu(*dims, opset=18):
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)] for name in "xy"]
    graph = helper.make_graph([node], "g", *ports)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return partita.Core().read_model(model)


def ran(model, *feeds):
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString())
    return session.run(None, dict(zip((port.name for port in model.inputs), feeds, strict=True)))[0]


def image(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def test_an_image_of_bytes_becomes_what_the_model_takes():
    model = relu(1, 3, 4, 5)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_element_type(Type.u8).set_layout("NHWC")
    ppp.input().model().set_layout("NCHW")
    steps = ppp.input().preprocess().convert_element_type(Type.f32)
    steps.mean([1.0, 2.0, 3.0]).scale(2.0).scale([1.0, 2.0, 4.0]).reverse_channels()
    assert ppp.build() is model
    assert (model.input().describe(), model.input().name) == ("uint8[1, 4, 5, 3]", "x")
    x = image(1, 4, 5, 3)
    expected = ((x.astype(np.float32) - [1, 2, 3]) / 2 / [1, 2, 4])[..., ::-1].transpose(0, 3, 1, 2)
    np.testing.assert_allclose(ran(model, x), np.maximum(expected, 0), rtol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "filtered"),
    [
        (ResizeAlgorithm.RESIZE_BILINEAR_PILLOW, Image.Resampling.BILINEAR),
        (ResizeAlgorithm.RESIZE_BICUBIC_PILLOW, Image.Resampling.BICUBIC),
    ],
)
@pytest.mark.parametrize("size", [(19, 21), (5, 6)])
def test_images_are_resized_as_pillow_does(algorithm, filtered, size):
    model = relu(1, 1, 8, 8)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_element_type("u8").set_layout("NHWC").set_spatial_dynamic_shape()
    ppp.input().model().set_layout("NCHW")
    ppp.input().preprocess().resize(algorithm)
    ppp.build()
    assert model.input().shape == (1, None, None, 1)
    x = image(1, *size, 1)
    expected = np.asarray(Image.fromarray(x[0, :, :, 0]).resize((8, 8), filtered))
    assert np.abs(ran(model, x)[0, 0] - expected).max() <= 1  # Pillow computes in whole numbers


@pytest.mark.parametrize("algorithm", ["RESIZE_NEAREST", "RESIZE_LINEAR", "RESIZE_CUBIC"])
def test_images_are_resized_to_a_size(algorithm):
    model = relu(1, 3, 4, 4)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_spatial_static_shape(8, 8)
    ppp.input().model().set_layout("NCHW")
    ppp.input().preprocess().resize(ResizeAlgorithm[algorithm], 4, 4)
    ppp.build()
    x = np.ones((1, 3, 8, 8), np.float32) * np.arange(3, dtype=np.float32).reshape(3, 1, 1)
    np.testing.assert_allclose(ran(model, x), x[:, :, :4, :4], rtol=1e-6)


def test_crop_and_pad():
    model = relu(1, 1, 6, 6)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_shape([1, 1, 8, 9])
    steps = ppp.input().preprocess().crop([0, 0, 2, 1], [1, 1, 6, -4])
    steps.pad([0, 0, 1, 1], [0, 0, 1, 1], 7.0, PaddingMode.CONSTANT)
    ppp.build()
    x = np.abs(RNG.normal(size=(1, 1, 8, 9))).astype(np.float32)
    expected = np.pad(x[:, :, 2:6, 1:5], ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=7)
    np.testing.assert_array_equal(ran(model, x), expected)


@pytest.mark.parametrize("mode", [PaddingMode.REFLECT, PaddingMode.SYMMETRIC])
def test_pads_that_mirror(mode):
    model = relu(7, 8)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_shape([4, 5])
    ppp.input().preprocess().pad([1, 2], [2, 1], 0.0, mode)
    ppp.build()
    x = np.abs(RNG.normal(size=(4, 5))).astype(np.float32)
    expected = np.pad(x, ((1, 2), (2, 1)), mode=mode.value)
    np.testing.assert_array_equal(ran(model, x), expected)


def yuv_planes(kind):
    y, u, v = image(1, 8, 8, 1), image(1, 4, 4, 1), image(1, 4, 4, 1)
    both = np.concatenate([u, v], axis=3)
    rows = {"NV12": [both.reshape(1, 4, 8, 1)], "I420": [p.reshape(1, 2, 8, 1) for p in (u, v)]}
    feeds = {
        "NV12_TWO_PLANES": [y, both],
        "I420_THREE_PLANES": [y, u, v],
        "NV12_SINGLE_PLANE": [np.concatenate([y, *rows["NV12"]], axis=1)],
        "I420_SINGLE_PLANE": [np.concatenate([y, *rows["I420"]], axis=1)],
    }[kind]
    y, u, v = (plane.astype(np.float64)[0, :, :, 0] for plane in (y, u, v))
    u, v = (np.kron(plane, np.ones((2, 2))) - 128 for plane in (u, v))
    y = 1.164 * (y - 16)
    rgb = np.stack([y + 1.596 * v, y - 0.391 * u - 0.813 * v, y + 2.018 * u])
    return feeds, np.clip(rgb, 0, 255)


@pytest.mark.parametrize(
    "kind", ["NV12_TWO_PLANES", "I420_THREE_PLANES", "NV12_SINGLE_PLANE", "I420_SINGLE_PLANE"]
)
def test_brightness_and_colour_become_three_colours(kind):
    model = relu(1, 3, 8, 8)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_element_type("u8").set_color_format(ColorFormat[kind])
    ppp.input().preprocess().convert_color(ColorFormat.RGB)
    ppp.input().model().set_layout("NCHW")
    ppp.build()
    feeds, expected = yuv_planes(kind)
    assert np.abs(ran(model, *feeds)[0] - expected).max() < 0.5 + 1e-3


def test_planes_are_inputs_with_names():
    model = relu(1, 3, 8, 8)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_color_format(ColorFormat.NV12_TWO_PLANES, ["luma", "chroma"])
    ppp.input().preprocess().convert_color(ColorFormat.BGR)
    ppp.input().model().set_layout("NCHW")
    names = [port.name for port in ppp.build().inputs]
    assert names == ["x/luma", "x/chroma"]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("RGBX", "RGB", lambda x: x[..., :3]),
        ("BGRX", "RGB", lambda x: x[..., 2::-1]),
        ("BGR", "RGB", lambda x: x[..., ::-1]),
        ("RGB", "GRAY", lambda x: x @ np.array([[0.299], [0.587], [0.114]], np.float32)),
    ],
)
def test_colours(source, target, expected):
    channels = 1 if target == "GRAY" else 3
    model = relu(1, channels, 4, 4)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_color_format(ColorFormat[source])
    ppp.input().preprocess().convert_color(ColorFormat[target])
    ppp.input().model().set_layout("NCHW")
    ppp.build()
    x = RNG.random(model.input().shape, np.float32)
    np.testing.assert_allclose(ran(model, x), expected(x).transpose(0, 3, 1, 2), rtol=1e-5)


def test_an_output_in_another_type_and_layout():
    model = relu(1, 3, 4, 5)
    ppp = PrePostProcessor(model)
    ppp.output().model().set_layout("NCHW")
    ppp.output().tensor().set_layout("NHWC")
    ppp.output().postprocess().convert_element_type(Type.i32)
    ppp.build()
    assert (model.output().name, model.output().describe()) == ("y", "int32[1, 4, 5, 3]")
    x = RNG.normal(size=(1, 3, 4, 5)).astype(np.float32) * 9
    expected = np.maximum(x, 0).astype(np.int32).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(ran(model, x), expected)


def test_layouts_by_places_and_axes_that_only_the_model_has():
    model = relu(1, 3, 4, 5)
    ppp = PrePostProcessor(model)
    ppp.input().preprocess().convert_layout([0, 3, 1, 2])
    ppp.build()
    assert model.input().shape == (1, 4, 5, 3)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_layout("HWC")
    ppp.input().model().set_layout("NHWC")
    ppp.build()
    x = RNG.random((4, 5, 3), np.float32)
    np.testing.assert_array_equal(ran(model, x), x.transpose(2, 0, 1)[None])


def test_models_of_an_old_opset_are_converted():
    model = relu(1, 3, 4, 4, opset=9)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_from(np.zeros((1, 3, 9, 9), np.uint8))
    ppp.input().preprocess().resize(ResizeAlgorithm.RESIZE_LINEAR)
    ppp.input().model().set_layout("NC...")
    with pytest.raises(ModelError, match=r"resize\(\) takes a layout with axis 'H'"):
        ppp.build()
    assert model.ir.opset_imports[""] == 9
    ppp.input().model().set_layout("NCHW")
    ppp.build()
    assert ran(model, np.full((1, 3, 9, 9), 3, np.uint8)).max() == 3


def _case(name):
    return {
        "mean": lambda p: p.input().preprocess().mean([1.0, 2.0, 3.0]),
        "bytes": lambda p: (
            p.input().tensor().set_element_type("u8"),
            p.input().preprocess().scale(2.0),
        ),
        "size": lambda p: (
            p.input().tensor().set_layout("NCHW"),
            p.input().preprocess().resize(ResizeAlgorithm.RESIZE_LINEAR),
        ),
        "input": lambda p: p.input("z"),
        "rank": lambda p: p.input().tensor().set_layout("NHW"),
        "model rank": lambda p: p.input().model().set_layout("NHW"),
        "twice": lambda p: p.input().model().set_layout("NCHH"),
        "fit": lambda p: p.input().tensor().set_shape([1, 3, 9, 9]),
        "crop": lambda p: p.input().preprocess().crop([0], [1]),
        "pad": lambda p: p.input().preprocess().pad([0], [1], 0.0, PaddingMode.CONSTANT),
        "color": lambda p: (
            p.input().tensor().set_color_format(ColorFormat.GRAY),
            p.input().model().set_layout("NCHW"),
            p.input().preprocess().convert_color(ColorFormat.RGB),
        ),
        "spatial": lambda p: p.input().tensor().set_spatial_static_shape(3, 4),
        "names": lambda p: (
            p.input().tensor().set_color_format(ColorFormat.NV12_TWO_PLANES, ["a"]),
        ),
        "axes": lambda p: (
            p.input().tensor().set_layout("NHWD"),
            p.input().model().set_layout("NCHW"),
        ),
        "places": lambda p: p.input().preprocess().convert_layout([0, 0]),
        "few places": lambda p: p.input().preprocess().convert_layout([1, 0]),
        "from": lambda p: p.input().preprocess().convert_layout("NHWC"),
    }[name]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("mean", r"mean\(\) takes a layout with axis 'C'; the tensor is without layout here"),
        ("bytes", r"scale\(\) is for floats, and elements are uint8 here; put convert_element"),
        ("size", r"resize\(\) without a size takes a layout with axis 'H'"),
        ("input", "Model 'g' has no input 'z'; it has 'x'"),
        ("rank", r"Input 'x' has 4 dimensions and its tensor 3; say with model\(\)"),
        ("model rank", "Layout '\\[N,H,W\\]' does not fit a tensor of 4 dimensions"),
        ("twice", "Layout 'NCHH' names the dimension 'H' twice"),
        ("fit", r"Input 'x' takes float32\[1, 3, 8, 8\], and the steps before it make"),
        ("crop", r"crop\(\) needs 4 numbers at each end"),
        ("pad", r"pad\(\) needs 4 numbers at each end"),
        ("color", "An image of 'GRAY' cannot be converted to 'RGB'"),
        ("spatial", "Height and width of the tensor for input 'x' take a layout with 'H' and 'W'"),
        ("names", "NV12_TWO_PLANES has 2 planes; 1 names were given"),
        ("axes", "A tensor 'NCHW' cannot become 'NHWD'|do not have the same axes"),
        ("places", r"convert_layout\(\[0, 0\]\): each place is named once"),
        ("few places", r"convert_layout\(\[1, 0\]\): the tensor has 4 dimensions"),
        ("from", r"convert_layout\(\) needs tensor\(\)\.set_layout\(\): the tensor's layout"),
    ],
)
def test_what_does_not_fit_is_said(case, message):
    model = relu(1, 3, 8, 8)
    before = model.to_onnx()
    ppp = PrePostProcessor(model)
    with pytest.raises(ModelError, match=message):
        _case(case)(ppp)
        ppp.build()
    assert model.to_onnx() == before
