"""Custom steps: graphs that an application writes between its tensors and a model."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import partita
from partita import Type
from partita import opset13 as ops
from partita.errors import ModelError
from partita.preprocess import ColorFormat, PrePostProcessor


def model(shape="1, 3", opset=13):
    head = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    text = f"{head} m (float[{shape}] x) => (float[{shape}] y) {{ y = Relu(x) }}"
    return partita.Core().read_model(parser.parse_model(text))


def result(ppp, x):
    return partita.compile_model(ppp.build(), "REFERENCE")(x)[0]


def number(value):
    return ops.constant(np.float32(value))


@pytest.mark.parametrize("opset", [7, 13, 18, 23])
def test_both_sides_take_steps_of_ones_own(opset):
    ppp = PrePostProcessor(model(opset=opset))
    ppp.input().tensor().set_element_type(Type.u8)
    steps = ppp.input().preprocess().convert_element_type(Type.f32).mean(4.0)
    steps.custom(lambda x: ops.multiply(ops.abs(x), number(2))).custom(
        lambda x: ops.subtract(x, number(3))
    ).scale(2.0)
    ppp.output().postprocess().custom(lambda y: ops.add(y, number(10)).output(0))
    x = np.array([[0, 3, 250]], np.uint8)
    due = np.maximum((np.abs(x.astype(np.float32) - 4) * 2 - 3) / 2, 0) + 10
    np.testing.assert_array_equal(result(ppp, x), due)


def test_the_function_is_called_once_with_what_the_steps_before_make():
    seen = []

    ppp = PrePostProcessor(model("N, 3, 4, 5"))
    ppp.input().tensor().set_element_type(Type.u8).set_shape([-1, 2, 7, 3]).set_layout("NHWC")
    ppp.input().model().set_layout("NCHW")
    ppp.input().preprocess().convert_element_type(Type.f32).resize(
        partita.preprocess.ResizeAlgorithm.RESIZE_NEAREST, 4, 5
    ).custom(lambda x: ops.multiply(x, number(2))).convert_layout("NCHW").custom(
        lambda x: (seen.append((x.element_type, str(x.partial_shape))), x)[1]
    )
    ppp.output().postprocess().custom(
        lambda y: ops.transpose(y, ops.constant(np.array([0, 2, 3, 1], np.int64)))
    )
    y = result(ppp, np.full((2, 2, 7, 3), 9, np.uint8))
    np.testing.assert_array_equal(y, np.full((2, 4, 5, 3), 18, np.float32))
    assert seen == [(Type.f32, "[?,3,4,5]")]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: 3, r"returned 3; it returns a node of partita.opsets"),
        (lambda x: np.abs(1), "is called while the model is built, and gets no numbers"),
        (lambda x: ops.split(x, ops.constant(np.int64(1)), 3), r"3 outputs; .* node.output\(0\)"),
        (lambda x: ops.parameter([1, 3]), "which is not a parameter of it"),
        (lambda x: ops.reshape(x, ops.constant(np.array([3, 1])), False), "Check the layouts"),
    ],
)
def test_what_is_no_graph_of_what_was_given_is_refused(function, said):
    kept = model()
    ppp = PrePostProcessor(kept)
    ppp.input().preprocess().custom(function)
    with pytest.raises(ModelError, match=said):
        ppp.build()
    assert [op.op_type for op in kept.ops] == ["Relu"]


def test_a_step_is_a_function():
    with pytest.raises(ModelError, match=r"custom\(\) takes a function .* found 3"):
        PrePostProcessor(model()).input().preprocess().custom(3)


def test_an_image_in_several_tensors_is_joined_before():
    ppp = PrePostProcessor(model("1, 4, 4, 3"))
    ppp.input().tensor().set_color_format(ColorFormat.NV12_TWO_PLANES)
    ppp.input().preprocess().custom(lambda x: x)
    with pytest.raises(ModelError, match=r"put convert_color\(\) before it"):
        ppp.build()
