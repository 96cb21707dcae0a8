"""Quantised operators: levels that are computed differ from LiteRT's by one at most."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tflite
from test_tflite_operators import run
from tflite_files import File, litert

RNG = np.random.default_rng(11)
IMAGE = (1, 6, 7, 4)
X = {"int8": (0.03, 5), "uint8": (0.03, 140), "int16": (0.0002, 0)}
Y = {"int8": (0.11, -7), "uint8": (0.11, 120), "int16": (0.0007, 0)}


def levels(shape, dtype="int8"):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def weights(file, shape, axis, dtype="int8"):
    """A constant with a scale for each index of an axis, and these scales."""
    scale = RNG.uniform(0.005, 0.02, shape[axis]).astype(np.float32)
    array = RNG.integers(-127, 128, shape).astype(dtype)
    zero = np.zeros(shape[axis], np.int64)
    return file.main.constant(array, (scale, zero, axis)), scale


def bias(file, scale, x, dtype):
    step = scale * np.float32(X[dtype][0])
    whole = "int64" if dtype == "int16" else "int32"
    array = (RNG.normal(0, 1, len(scale)) / step).astype(whole)
    return file.main.constant(array, (step, np.zeros(len(scale), np.int64), 0))


def finish(file, places, shapes, dtype, code, options=None, y=None, **fields):
    outputs = [file.main.tensor(shape, dtype, None, y or Y[dtype]) for shape in shapes]
    file.main.op(code, places, outputs, options, **fields)
    file.main.outputs(*outputs)
    return file.bytes()


def agree(data, feeds, quanta=1):
    for found, expected in zip(run(data, feeds), litert(data, feeds)[0], strict=True):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        gap = np.abs(found.astype(np.int64) - expected.astype(np.int64))
        assert gap.max(initial=0) <= quanta


@pytest.mark.parametrize("activation", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_convolution_with_a_scale_for_each_channel(dtype, activation):
    file, x = File(), levels(IMAGE, dtype)
    w, scale = weights(file, (5, 3, 3, 4), 0)
    places = [file.main.input(IMAGE, dtype, X[dtype]), w, bias(file, scale, x, dtype)]
    data = finish(
        file,
        places,
        [(1, 3, 4, 5)],
        dtype,
        "CONV_2D",
        "Conv2DOptions",
        padding=0,
        strideW=2,
        strideH=2,
        fusedActivationFunction=activation,
    )
    agree(data, [x])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_convolution_by_channel(dtype):
    file, x = File(), levels(IMAGE, dtype)
    w, scale = weights(file, (1, 3, 3, 8), 3)
    places = [file.main.input(IMAGE, dtype, X[dtype]), w, bias(file, scale, x, dtype)]
    fields = {"padding": 0, "strideW": 1, "strideH": 1, "depthMultiplier": 2}
    shape = (1, 6, 7, 8)
    data = finish(
        file, places, [shape], dtype, "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", **fields
    )
    agree(data, [x])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_transposed_convolution(dtype):
    file, x = File(), levels(IMAGE, dtype)
    w, scale = weights(file, (3, 3, 3, 4), 0)
    shape = file.main.constant(np.array([1, 12, 14, 3], np.int32))
    places = [shape, w, file.main.input(IMAGE, dtype, X[dtype]), bias(file, scale, x, dtype)]
    data = finish(
        file,
        places,
        [(1, 12, 14, 3)],
        dtype,
        "TRANSPOSE_CONV",
        "TransposeConvOptions",
        padding=0,
        strideW=2,
        strideH=2,
    )
    agree(data, [x])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("shape", [(2, 6), (2, 3, 6)])
def test_a_fully_connected_layer(dtype, shape):
    file, x = File(), levels(shape, dtype)
    w = file.main.constant(RNG.integers(-127, 128, (5, 6)).astype(np.int8), (0.02, 0))
    step = np.array([0.02 * X[dtype][0]], np.float32)
    whole = np.int64 if dtype == "int16" else np.int32
    b = file.main.constant((RNG.normal(0, 1, 5) / step).astype(whole), (step, [0]))
    places = [file.main.input(shape, dtype, X[dtype]), w, b]
    data = finish(
        file,
        places,
        [(*shape[:-1], 5)],
        dtype,
        "FULLY_CONNECTED",
        "FullyConnectedOptions",
        keepNumDims=len(shape) > 2,
    )
    agree(data, [x])


@pytest.mark.parametrize("code", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_arithmetic(code, dtype):
    file = File()
    feeds = [levels((2, 5), dtype), levels((2, 5), dtype)]
    places = [file.main.input((2, 5), dtype, scale[dtype]) for scale in (X, Y)]
    options = f"{code.capitalize()}Options"
    fields = {} if code == "MUL" else {"potScaleInt16": False}
    data = finish(file, places, [(2, 5)], dtype, code, options, **fields)
    agree(data, feeds)


UNARY = {
    "LOGISTIC": {"int8": (1 / 256, -128), "int16": (1 / 32768, 0)},
    "TANH": {"int8": (1 / 128, 0), "int16": (1 / 32768, 0)},
    "HARD_SWISH": {"int8": Y["int8"]},
    "LEAKY_RELU": {"int8": Y["int8"], "int16": Y["int16"]},
    "RELU": {"int8": X["int8"]},
    "RELU6": {"int8": X["int8"]},
    "SOFTMAX": {"int8": (1 / 256, -128), "int16": (1 / 32768, 0)},
    "ABS": {"int8": X["int8"]},
}


@pytest.mark.parametrize(("code", "dtype"), [(c, d) for c in UNARY for d in UNARY[c]])
def test_operators_of_one_input(code, dtype):
    file, x = File(), levels((2, 8), dtype)
    options = {"LEAKY_RELU": "LeakyReluOptions", "SOFTMAX": "SoftmaxOptions"}.get(code)
    fields = {"LEAKY_RELU": {"alpha": 0.25}, "SOFTMAX": {"beta": 1.0}}.get(code, {})
    places = [file.main.input((2, 8), dtype, X[dtype])]
    y = UNARY[code][dtype]
    data = finish(file, places, [(2, 8)], dtype, code, options, y, **fields)
    agree(data, [x], 4 if dtype == "int16" else 1)


@pytest.mark.parametrize("code", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_pools(code, dtype, monkeypatch):
    # From Python 3.13 on, a class holds the number of its line: here, that of these options.
    numbers = {"__firstlineno__": 5, **vars(tflite.BuiltinOptions)}
    monkeypatch.setattr(tflite, "BuiltinOptions", SimpleNamespace(**numbers))
    file, x = File(), levels(IMAGE, dtype)
    places = [file.main.input(IMAGE, dtype, X[dtype])]
    fields = {"padding": 0, "strideW": 2, "strideH": 2, "filterWidth": 3, "filterHeight": 3}
    shape = (1, 3, 4, 4)
    data = finish(file, places, [shape], dtype, code, "Pool2DOptions", X[dtype], **fields)
    agree(data, [x])


@pytest.mark.parametrize("y", [X["int8"], Y["int8"]], ids=["same", "other"])
def test_a_mean(y):
    file, x = File(), levels(IMAGE)
    places = [file.main.input(IMAGE, "int8", X["int8"])]
    places.append(file.main.constant(np.array([1, 2], np.int32)))
    data = finish(file, places, [(1, 4)], "int8", "MEAN", "ReducerOptions", y, keepDims=False)
    agree(data, [x])


def test_what_moves_levels_does_not_change_them():
    file, x = File(), levels((2, 6))
    scale = X["int8"]
    first = file.main.input((2, 6), "int8", scale)
    shape = file.main.constant(np.array([3, 4], np.int32))
    paddings = file.main.constant(np.array([[1, 0], [0, 2]], np.int32))
    second = file.main.op(
        "RESHAPE", [first, shape], [file.main.tensor((3, 4), "int8", None, scale)]
    )
    padded = file.main.op(
        "PAD", [second, paddings], [file.main.tensor((4, 6), "int8", None, scale)]
    )
    joined = file.main.tensor((8, 6), "int8", None, scale)
    file.main.op("CONCATENATION", [padded, padded], [joined], "ConcatenationOptions", axis=0)
    file.main.outputs(joined)
    agree(file.bytes(), [x], quanta=0)


def test_joined_tensors_of_other_scales():
    file = File()
    feeds = [levels((2, 3), "uint8"), levels((2, 4), "uint8")]
    places = [
        file.main.input(a.shape, "uint8", s["uint8"]) for a, s in zip(feeds, (X, Y), strict=True)
    ]
    data = finish(file, places, [(2, 7)], "uint8", "CONCATENATION", "ConcatenationOptions", axis=1)
    agree(data, feeds)


def test_levels_are_made_changed_and_unmade():
    file, x = File(), RNG.normal(0, 2, (3, 4)).astype(np.float32)
    place = file.main.input((3, 4))
    one = file.main.op("QUANTIZE", [place], [file.main.tensor((3, 4), "int8", None, X["int8"])])
    two = file.main.op("QUANTIZE", [one], [file.main.tensor((3, 4), "uint8", None, Y["uint8"])])
    out = file.main.op("DEQUANTIZE", [two], [file.main.tensor((3, 4))])
    file.main.outputs(one, out)
    found, expected = run(file.bytes(), [x]), litert(file.bytes(), [x])[0]
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], atol=Y["uint8"][0] * 1.01)


def test_weights_of_half_precision():
    file, x = File(), RNG.normal(0, 1, (2, 6)).astype(np.float32)
    w = file.main.constant(RNG.normal(0, 1, (5, 6)).astype(np.float16))
    full = file.main.op("DEQUANTIZE", [w], [file.main.tensor((5, 6))])
    place, out = file.main.input((2, 6)), file.main.tensor((2, 5))
    file.main.op("FULLY_CONNECTED", [place, full, -1], [out], "FullyConnectedOptions")
    file.main.outputs(out)
    found, expected = run(file.bytes(), [x])[0], litert(file.bytes(), [x])[0][0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_levels_and_images_of_floats(bits):
    """LiteRT quantises the input on the way, so that only the exact result tells."""
    file, x = File(), RNG.normal(0, 1, (2, 6)).astype(np.float32)
    array = RNG.integers(-8 if bits == 4 else -127, 8 if bits == 4 else 128, (5, 6))
    scale = RNG.uniform(0.01, 0.1, 5).astype(np.float32)
    quantization = (scale, np.zeros(5, np.int64), 0)
    if bits == 8:
        w = file.main.constant(array.astype(np.int8), quantization)
    else:
        halves = (array.reshape(-1, 2) & 15).astype(np.uint8)
        raw = halves[:, 0] | halves[:, 1] << 4
        w = file.main.tensor((5, 6), "int4", raw, quantization)
    place, out = file.main.input((2, 6)), file.main.tensor((2, 5))
    file.main.op("FULLY_CONNECTED", [place, w, -1], [out], "FullyConnectedOptions")
    file.main.outputs(out)
    found = run(file.bytes(), [x])[0]
    np.testing.assert_allclose(found, x @ (array * scale[:, None]).T, rtol=1e-5, atol=1e-5)
    (answer,) = litert(file.bytes(), [x])[0]
    np.testing.assert_allclose(found, answer, atol=0.02 * np.abs(answer).max())
