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


def as_onnxruntime(attributes, twin=None, *, op="AveragePool", opset=19, size=(9,)):
    """Devices have what onnxruntime has, if need be of a twin: the same by other attributes."""
    feeds, names = {"x": floats(2, 3, *size)}, "abcd"[: 2 + len(size)]
    models = [
        parser.parse_model(
            f"""<ir_version: 9, opset_import: ["" : {opset}]>
            g (float[{",".join(map(str, (2, 3, *size)))}] x) => (float[{",".join(names)}] y) {{
              y = {op} <{given}> (x) }}"""
        )
        for given in (attributes, twin or attributes)
    ]
    due = ort.InferenceSession(models[1].SerializeToString()).run(None, feeds)[0]
    for device in ("REFERENCE", "CPU"):
        (found,) = partita.Core().compile_model(models[0], device)(feeds).to_tuple()
        assert found.shape == due.shape, device
        np.testing.assert_allclose(found, due, rtol=1e-5, atol=1e-6, err_msg=device)


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


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("pads", ["0,0", "1,0", "0,1", "1,1"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 3), (2, 3), (3, 2), (2, 2)])
def test_means_of_windows_that_reach_over_the_end(kernel, stride, pads, count):
    """The original moves the first window too, by half of what the last one needs."""
    given = f"kernel_shape = [{kernel}], strides = [{stride}], pads = [{pads}], ceil_mode = 1"
    as_onnxruntime(f"{given}, count_include_pad = {count}")
    as_onnxruntime(f"{given}, p = 3", op="LpPool", opset=18)


@pytest.mark.parametrize("strides", ["1,1", "2,1", "3,2"])
@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
def test_dilated_windows_that_are_valid(op, strides):
    given = f'kernel_shape = [2,3], dilations = [3,2], strides = [{strides}], auto_pad = "VALID"'
    as_onnxruntime(given, op=op, size=(8, 7))


@pytest.mark.parametrize(
    ("strides", "dilations", "upper", "lower"),
    [
        ("1,1", "2,2", "1,2,1,2", "1,2,1,2"),
        ("2,1", "3,1", "1,1,1,1", "1,1,1,1"),
        ("1,3", "1,2", "0,1,1,2", "1,2,0,1"),
    ],
)
@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
def test_dilated_windows_of_the_same_size(op, strides, dilations, upper, lower):
    """onnxruntime pads as if there were no gaps, so it is told the pads of ONNX's text."""
    given = f"kernel_shape = [2,3], strides = [{strides}], dilations = [{dilations}]"
    for name, pads in (("SAME_UPPER", upper), ("SAME_LOWER", lower)):
        twin = f"{given}, pads = [{pads}]"
        as_onnxruntime(f'{given}, auto_pad = "{name}"', twin, op=op, size=(8, 8))


@pytest.mark.parametrize("pads", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize("more", [None, -1, 0, "stride - 1"])
def test_transposed_convolution_with_windows_that_do_not_meet(stride, pads, more):
    """What is missing to the size lies behind, and nobody adds it where no size is given."""
    size = 4 * stride + 2 + (stride - 1 if more == "stride - 1" else more or 0)
    shape = "" if more is None else f", output_shape = [{size}]"
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 16]>
        g (float[1,2,5] x, float[2,3,2] w, float[3] b) => (float[n,c,h] y) {{
          y = ConvTranspose <auto_pad = "{pads}", strides = [{stride}]{shape}> (x, w, b) }}"""
    )
    feeds = {"x": floats(1, 2, 5), "w": floats(2, 3, 2), "b": floats(3)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (due,) = session.run(None, feeds)
    for device in ("REFERENCE", "CPU"):
        (found,) = partita.Core().compile_model(model, device)(feeds).to_tuple()
        assert found.shape == due.shape, device
        np.testing.assert_allclose(found, due, rtol=1e-5, atol=1e-5, err_msg=device)
