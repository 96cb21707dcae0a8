"""Group and instance normalization of images with channels last, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from partita_cpu.llvm.levels import EVERY
from partita_cpu.nhwc.group_normalization import normalize_pixels

from ..networks.test_native_halves import BF16
from ..networks.test_native_layout import Net, check, compiled

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Silu", "HardSigmoid"])
def test_images_stay_in_bfloat16(level, activation):
    net = Net(1, 8, 12, 10)
    image = net.conv("x", 8, 24)
    y = net.add("InstanceNormalization", image, net.const(24), net.const(24))
    y = net.add("Mul", y, net.add("Sigmoid", y)) if activation == "Silu" else net.add(activation, y)
    pooled = net.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = net.conv(pooled, 24, 12)
    check(net, y, config=BF16, tolerance=4e-2)
    specs = [(net.shape, np.dtype(np.float32))]
    device = compiled(net.model(y), **BF16).device_model
    steps = device.specializer.program(specs, None).steps
    kinds = [
        step.args[n].dtype.itemsize for step in steps for n in (0, 5) if step.fn is normalize_pixels
    ]
    kept = EVERY[level].keeps_bfloat16
    assert kinds == [2 if kept else 4, 2 if kept and activation != "HardSigmoid" else 4]


def spelled(net, x, shape, groups, activation=None):
    """Group normalization as exporters write it, with SiLU if that is asked for."""
    channels = shape[1]
    rows = net.add("Reshape", x, net.const(values=np.array([0, groups, -1])))
    ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    sums = [net.const(values=ones), net.const(values=zeros)]
    normal = net.add("InstanceNormalization", rows, *sums)
    back = net.add("Reshape", normal, net.const(values=np.array(shape)))
    y = net.add("Mul", back, net.const(channels, 1, 1))
    y = net.add("Add", y, net.const(channels, 1, 1))
    return y if activation is None else net.add("Mul", y, net.add("Sigmoid", y))


@pytest.mark.parametrize(
    ("channels", "groups"), [(6, 1), (6, 3), (32, 8), (36, 36), (40, 1), (96, 32)]
)
@pytest.mark.parametrize("activation", [None, "Silu"])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (17, 21)])
def test_groups_between_convolutions(channels, groups, activation, size):
    net = Net(2, 5, *size)
    a = net.conv("x", 5, channels)
    b = spelled(net, a, (2, channels, *size), groups, activation)
    c = net.add("Add", net.conv(b, channels, channels, 1), a)
    kinds = check(net, c, tolerance=4e-5)
    assert not any(name.startswith("permute") and b in name for name in kinds)


@pytest.mark.parametrize("channels", [4, 33])
def test_every_channel_for_itself(channels):
    net = Net(2, 5, 9, 12)
    a = net.conv("x", 5, channels)
    b = net.add("InstanceNormalization", a, net.const(channels), net.const(channels))
    check(net, net.conv(net.add("Relu", b), channels, 3), b, tolerance=1e-5)


def test_parts_of_larger_images_are_normalized_where_they_lie():
    net = Net(1, 5, 9, 12)
    a, b = net.conv("x", 5, 8), net.conv("x", 5, 24)
    c = spelled(net, a, (1, 8, 9, 12), 2, "Silu")
    d = spelled(net, b, (1, 24, 9, 12), 3)
    whole = net.add("Concat", a, c, b, d, axis=1)
    kinds = check(net, net.conv(spelled(net, whole, (1, 64, 9, 12), 8), 64, 4), tolerance=1e-5)
    assert "copy" not in kinds.values()


def operator(version, channels, groups, size):
    """A 1x1 convolution by the unit matrix, and the operator."""
    net = Net(1, channels, *size)
    unit = np.eye(channels, dtype=np.float32)[..., None, None]
    image = net.add("Conv", "x", net.const(values=unit))
    parts = groups if version < 21 else channels
    given = net.const(parts), net.const(parts)
    y = net.add("GroupNormalization", image, *given, num_groups=groups, epsilon=1e-3)
    model = net.model(y, image)
    model.opset_import[0].version = version
    model.ir_version = 10
    return net, model, [numpy_helper.to_array(net.weights[place]) for place in (1, 2)]


def exact(x, groups, scale, bias, epsilon=1e-3):
    wide = x.astype(np.float64).reshape(len(x), groups, -1)
    off = wide - wide.mean(-1, keepdims=True)
    unit = off / np.sqrt((off * off).mean(-1, keepdims=True) + epsilon)
    channels = x.shape[1]
    rows = (np.repeat(part, channels // len(part)).reshape(-1, 1, 1) for part in (scale, bias))
    factor, term = rows
    return unit.reshape(x.shape) * factor + term


@pytest.mark.parametrize("version", [18, 21])
@pytest.mark.parametrize("far", [0.0, 1e4])
@pytest.mark.parametrize("size", [(6, 7), (40, 50)])
def test_the_operator_is_exact_where_means_are_far_from_zero(version, far, size):
    net, model, (scale, bias) = operator(version, 24, 4, size)
    x = (net.rng.standard_normal(net.shape) + far).astype(np.float32)
    config = {"EXECUTION_MODE_HINT": "ACCURACY"}
    found, image = compiled(model, **config).create_infer_request().infer({"x": x}).values()
    np.testing.assert_array_equal(image, x)
    np.testing.assert_allclose(found, exact(x, 4, scale, bias), rtol=2e-5, atol=2e-5)


def test_pixels_that_are_sampled_may_differ_from_all_others():
    net, model, (scale, bias) = operator(21, 16, 2, (32, 64))
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    x.reshape(1, 16, -1)[:, :, ::8] += 1000
    config = {"EXECUTION_MODE_HINT": "ACCURACY"}
    found = compiled(model, **config).create_infer_request().infer({"x": x})[0]
    np.testing.assert_allclose(found, exact(x, 2, scale, bias), rtol=2e-5, atol=2e-5)


def test_numbers_that_are_none_stay_in_their_image():
    net = Net(2, 16, 5, 5)
    y = net.conv(spelled(net, net.conv("x", 16, 16, 1), net.shape, 4, "Silu"), 16, 8, 1)
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    x[1, 5, 2, 2] = np.nan
    found = compiled(net.model(y)).create_infer_request().infer({"x": x})[0]
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()
