"""Pooling and transposed convolution in device REFERENCE against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

import partita


def agree(text, feeds):
    model = parser.parse_model(text)
    ours = partita.Core().compile_model(model, "REFERENCE")(feeds).to_tuple()
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for have, want in zip(ours, session.run(None, feeds), strict=True):
        assert have.shape == want.shape
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def floats(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape = [3,2], pads = [2,0,2,1]",
        "kernel_shape = [3,3], strides = [2,2], ceil_mode = 1",
        "kernel_shape = [3,2], strides = [2,1], auto_pad = 'SAME_LOWER'",
        "kernel_shape = [2,3], dilations = [2,2], pads = [1,1,0,1]",
        "kernel_shape = [2,2], strides = [3,3], ceil_mode = 1, pads = [1,1,1,1]",
    ],
)
def test_max_pool_with_indices(attributes):
    attributes = attributes.replace("'", '"')
    agree(
        f"""<ir_version: 8, opset_import: ["" : 16]>
        g (float[2,3,5,6] x) => (float[a,b,c,d] y, int64[a,b,c,d] i) {{
          y, i = MaxPool <{attributes}> (x) }}""",
        {"x": floats(2, 3, 5, 6)},
    )


@pytest.mark.parametrize(
    ("dims", "kernel", "result"), [("5", "3", "a,b,c"), ("4,5,3", "2,3,2", "a,b,c,d,e")]
)
def test_max_pool_of_one_and_three_dimensions(dims, kernel, result):
    agree(
        f"""<ir_version: 8, opset_import: ["" : 16]>
        g (float[1,2,{dims}] x) => (float[{result}] y) {{
          y = MaxPool <kernel_shape = [{kernel}]> (x) }}""",
        {"x": floats(1, 2, *map(int, dims.split(",")))},
    )


@pytest.mark.parametrize("group", [1, 2, 4])
def test_transposed_convolution_in_groups(group):
    agree(
        f"""<ir_version: 8, opset_import: ["" : 16]>
        g (float[2,4,5,3] x, float[4,3,3,2] w, float[{3 * group}] b) => (float[n,c,h,v] y) {{
          y = ConvTranspose <group = {group}, strides = [2,1], pads = [1,0,0,1]> (x, w, b) }}""",
        {"x": floats(2, 4, 5, 3), "w": floats(4, 3, 3, 2), "b": floats(3 * group)},
    )


def test_dequantize_of_old_opsets():
    agree(
        """<ir_version: 8, opset_import: ["" : 16]>
        g (int8[2,3] x, float[3] s, int8[3] z) => (float[2,3] y) {
          y = DequantizeLinear <axis = 1> (x, s, z) }""",
        {
            "x": np.array([[-128, 0, 127], [5, -5, 1]], np.int8),
            "s": np.array([0.1, 0.2, 0.3], np.float32),
            "z": np.array([3, -4, 0], np.int8),
        },
    )
