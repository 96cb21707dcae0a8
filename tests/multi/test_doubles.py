"""float64 stays float64 on CPU and on the judge; defaults of attributes are of float32."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 6, 4, 5))
ROWS = {name: RNG.standard_normal(6) for name in ("scale", "bias", "mean")}
VARIANCE = {"variance": np.array([1e-7, 0.2, 0.3, 1, 2, 3])}
THETA = RNG.standard_normal((2, 2, 3))
GRID = RNG.uniform(-1, 1, (2, 3, 3, 2))
DEVICES = ["CPU", "REFERENCE"]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def single(value):
    """A number as ONNX keeps attributes."""
    return float(np.float32(value))


def per_channel(row):
    return row[:, None, None]


def normal(x, axis, epsilon):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)


def batch_normalization(epsilon):
    factor = ROWS["scale"] / np.sqrt(VARIANCE["variance"] + single(epsilon))
    centred = X - per_channel(ROWS["mean"])
    return centred * per_channel(factor) + per_channel(ROWS["bias"])


def group_normalization(epsilon):
    normed = normal(X.reshape(2, 3, -1), 2, single(epsilon)).reshape(X.shape)
    return normed * per_channel(ROWS["scale"]) + per_channel(ROWS["bias"])


def local_response(alpha):
    squares = [(X[:, max(c - 1, 0) : c + 2] ** 2).sum(1) for c in range(6)]
    return X / (1 + single(alpha) / 3 * np.stack(squares, 1)) ** 0.75


def affine_grid():
    y, x = ((2 * np.arange(n) + 1) / n - 1 for n in (4, 5))
    places = np.stack([*np.meshgrid(x, y), np.ones((4, 5))], -1)
    return np.einsum("hwj,nij->nhwi", places, THETA)


def grid_sample():
    x, y = ((GRID[..., i] + 1) * size / 2 - 0.5 for i, size in ((0, 5), (1, 4)))
    result = np.zeros((2, 6, 3, 3))
    for dy, dx in np.ndindex(2, 2):
        row, column = np.floor(y).astype(int) + dy, np.floor(x).astype(int) + dx
        share = (1 - abs(y - row)) * (1 - abs(x - column))
        inside = (row >= 0) & (row < 4) & (column >= 0) & (column < 5)
        for n in range(2):
            found = X[n][:, np.clip(row[n], 0, 3), np.clip(column[n], 0, 4)]
            result[n] += found * (share * inside)[n]
    return result


NORMS = {"x": X, "scale": ROWS["scale"], "bias": ROWS["bias"]}
CASES = {
    "Erf": ("Erf", {"x": X}, {}, lambda: _erf(X)),
    "HardSwish": ("HardSwish", {"x": X}, {}, lambda: X * np.clip(X / 6 + 0.5, 0, 1)),
    "LeakyRelu": ("LeakyRelu", {"x": X}, {}, lambda: np.where(X < 0, single(0.01) * X, X)),
    "LeakyRelu 0.3": (
        "LeakyRelu",
        {"x": X},
        {"alpha": 0.3},
        lambda: np.where(X < 0, single(0.3) * X, X),
    ),
    "HardSigmoid": ("HardSigmoid", {"x": X}, {}, lambda: np.clip(single(0.2) * X + 0.5, 0, 1)),
    "BatchNormalization": (
        "BatchNormalization",
        {"x": X, **ROWS, **VARIANCE},
        {},
        lambda: batch_normalization(1e-5),
    ),
    "Gelu": ("Gelu", {"x": X}, {}, lambda: X / 2 * (1 + _erf(X / math.sqrt(2)))),
    "Gelu tanh": (
        "Gelu",
        {"x": X},
        {"approximate": "tanh"},
        lambda: X / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))),
    ),
    "GroupNormalization": (
        "GroupNormalization",
        NORMS,
        {"num_groups": 3},
        lambda: group_normalization(1e-5),
    ),
    "LRN": ("LRN", {"x": X}, {"size": 3}, lambda: local_response(1e-4)),
    "AffineGrid": (
        "AffineGrid",
        {"x": THETA, "size": np.array([2, 3, 4, 5])},
        {},
        affine_grid,
    ),
    "GridSample": ("GridSample", {"x": X, "grid": GRID}, {}, grid_sample),
    "MeanVarianceNormalization": (
        "MeanVarianceNormalization",
        {"x": X},
        {},
        lambda: (X - X.mean((0, 2, 3), keepdims=True)) / (X.std((0, 2, 3), keepdims=True) + 1e-9),
    ),
}


def model_of(op_type, feeds, attributes, opset=22):
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    output = helper.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)
    node = helper.make_node(op_type, list(feeds), ["y"], **attributes)
    graph = helper.make_graph([node], "one", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(CASES))
def test_doubles(name, device):
    op_type, feeds, attributes, want = CASES[name]
    found = partita.Core().compile_model(model_of(op_type, feeds, attributes), device)(feeds)[0]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, want(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slope", [np.inf, -np.inf, np.nan])
def test_prelu_keeps_zero(device, slope):
    feeds = {"x": np.array([0.0, -0.0, 2, -1], np.float32), "s": np.full(1, slope, np.float32)}
    found = partita.Core().compile_model(model_of("PRelu", feeds, {}), device)(feeds)[0]
    np.testing.assert_array_equal(found, [0, 0, 2, -slope])


def interpolated(line, factor):
    """A line drawn out by a whole factor, in fractions."""
    points = []
    for i in range(factor * len(line)):
        place = min(Fraction(i, factor), len(line) - 1)
        low = math.floor(place)
        high = min(low + 1, len(line) - 1)
        points.append(line[low] + (line[high] - line[low]) * (place - low))
    return points


@pytest.mark.parametrize(
    ("op_type", "opset", "device"),
    [("Upsample", 9, "CPU"), ("Resize", 13, "CPU"), ("Resize", 13, "REFERENCE")],
)
def test_integers_between_points(op_type, opset, device):
    """What is whole stays so: 2.9999998, which float32 makes of 3, was cut off to 2."""
    x = RNG.integers(0, 100, (1, 1, 5, 6)).astype(np.uint8)
    scales = np.array([1, 1, 3, 3], np.float32)
    names = ["x", "s"] if op_type == "Upsample" else ["x", "", "s"]
    extra = {}
    if op_type == "Resize":
        extra["coordinate_transformation_mode"] = "asymmetric"
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], mode="linear", **extra)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(scales, "s")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    found = partita.Core().compile_model(proto, device)({"x": x})[0]
    rows = [interpolated([Fraction(int(v)) for v in row], 3) for row in x[0, 0]]
    columns = [interpolated(list(column), 3) for column in zip(*rows, strict=True)]
    want = [[math.floor(v) for v in row] for row in zip(*columns, strict=True)]
    np.testing.assert_array_equal(found[0, 0], want)


def test_a_slope_of_float32_stays_one():
    """A product with a HardSigmoid of nearly 1/6 is no HardSwish in float64."""
    slope = single(1 / 6)
    graph = helper.make_graph(
        [
            helper.make_node("HardSigmoid", ["x"], ["s"], alpha=slope),
            helper.make_node("Mul", ["x", "s"], ["y"]),
        ],
        "swish",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, X.shape)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8)
    found = partita.Core().compile_model(proto, "CPU")({"x": X})[0]
    np.testing.assert_allclose(found, X * np.clip(slope * X + 0.5, 0, 1), rtol=1e-12)
