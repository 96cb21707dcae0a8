"""Sums over images that are put on an axis of their own, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from ..networks.test_native_layout import Net, check, compiled

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""

BATCH, SIZE = 2, (9, 12)


def integers(net, *numbers):
    return net.const(values=np.array(numbers, np.int64))


def groups_of(net, x, count, channels):
    """The groups of channels of an image, on an axis of their own."""
    return net.add("Reshape", x, integers(net, BATCH, count, channels, *SIZE))


def branches(net, images):
    axis = integers(net, 1)
    return net.add("Concat", *[net.add("Unsqueeze", x, axis) for x in images], axis=1)


def attended(net, stack, count, channels):
    """Images weighed by what a network makes of their sum."""
    axis = integers(net, 1)
    total = net.add("ReduceSum", stack, axis, keepdims=0)
    mean = net.add("ReduceMean", total, axes=[2, 3], keepdims=1)
    gate = net.conv(mean, channels, count * channels, 1)
    gate = net.add("Reshape", gate, integers(net, BATCH, count, channels, 1, 1))
    gate = net.add("Softmax", gate, axis=1)
    return net.add("ReduceSum", net.add("Mul", gate, stack), axis, keepdims=0), total


def functions(net, y, **config):
    device = compiled(net.model(y), **config)
    specs = [(port.shape, port.dtype) for port in device.inputs]
    return [step.fn.__name__ for step in device.device_model.specializer.program(specs, None).steps]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("channels", [8, 19])
def test_groups_of_channels(count, channels):
    net = Net(BATCH, 5, *SIZE)
    x = net.add("Relu", net.conv("x", 5, count * channels))
    y, _ = attended(net, groups_of(net, x, count, channels), count, channels)
    y = net.conv(y, channels, 4)
    kinds = check(net, y, tolerance=1e-5)
    assert sum(name.startswith("permute") for name in kinds) <= 2  # of the input and the result
    assert not any("reduce" in name for name in functions(net, y))


@pytest.mark.parametrize("count", [2, 3])
def test_branches(count):
    net = Net(BATCH, 5, *SIZE)
    images = [net.add("Relu", net.conv("x", 5, 8)) for _ in range(count)]
    y, total = attended(net, branches(net, images), count, 8)
    check(net, net.conv(y, 8, 4), total, images[0], tolerance=1e-5)


def test_images_in_bfloat16():
    net = Net(BATCH, 8, *SIZE)
    x = net.add("Relu", net.conv("x", 8, 32))
    y, _ = attended(net, groups_of(net, x, 2, 16), 2, 16)
    check(net, net.conv(y, 16, 8), config={"INFERENCE_PRECISION_HINT": "bf16"}, tolerance=3e-2)


@pytest.mark.parametrize("axis", [-4, 2])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_sums_over_one_axis_alone_are_those_of_images(axis, keepdims):
    net = Net(BATCH, 5, *SIZE)
    stack = groups_of(net, net.conv("x", 5, 24), 3, 8)
    check(net, net.add("ReduceSum", stack, integers(net, axis), keepdims=keepdims), tolerance=1e-5)


def test_what_others_read_too_stays():
    net = Net(BATCH, 5, *SIZE)
    stack = groups_of(net, net.conv("x", 5, 16), 2, 8)
    total = net.add("ReduceSum", stack, integers(net, 1), keepdims=0)
    check(net, net.conv(total, 8, 4), net.add("Neg", stack), tolerance=1e-5)


def test_weights_that_are_no_number_for_each_channel_stay():
    net = Net(BATCH, 5, *SIZE)
    stack = groups_of(net, net.conv("x", 5, 16), 2, 8)
    whole = net.add("Sigmoid", groups_of(net, net.conv("x", 5, 16), 2, 8))
    y = net.add("ReduceSum", net.add("Mul", stack, whole), integers(net, 1), keepdims=0)
    check(net, net.conv(y, 8, 4), tolerance=1e-5)


def test_an_axis_that_is_no_group_of_channels_stays():
    net = Net(BATCH, 5, *SIZE)
    x = net.conv("x", 5, 16)
    stack = net.add("Reshape", x, integers(net, BATCH, 2, 8, SIZE[1], SIZE[0]))
    check(net, net.add("ReduceSum", stack, integers(net, 1), keepdims=0), tolerance=1e-5)
