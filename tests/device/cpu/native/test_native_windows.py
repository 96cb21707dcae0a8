"""Outputs that are parts of larger images: written in place or copied, and nothing beside them."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results

from partita import HostTensor
from partita.tensors.layout import LaidOutTensor, Window

from .test_native_layout import Net, compiled

MARK = np.float32(-77)


def expected(proto, x):
    return onnxruntime_results(proto, {"x": x})


def check(net, outputs, begins, whole, in_place=None, **config):
    """Runs with all outputs in one larger image, into given memory and then into its own."""
    proto = net.model(*outputs)
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    wanted = expected(proto, x)
    device = compiled(proto, PERF_COUNT=True, **config)
    named = device.layouts()
    assert set(device.outputs) <= set(device.windows())
    layouts = {}
    for port, begin, want in zip(device.outputs, begins, wanted, strict=True):
        (layout,) = named[port]
        window = Window(begin, want.shape[1], whole)
        layouts[port] = type(layout)(layout.axes, layout.dtype, window)
    laid_out = device.with_layouts(layouts)
    runner = laid_out.create_runner()
    n, _, h, w = wanted[0].shape
    image = np.full((n, h, w, whole), MARK)
    targets = [LaidOutTensor(image, port.dtype, layouts[port]) for port in device.outputs]
    results = runner.run([HostTensor(x)], targets)
    written = np.zeros(whole, bool)
    for result, target, begin, want in zip(results, targets, begins, wanted, strict=True):
        assert result is target
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-4, atol=1e-4)
        written[begin : begin + want.shape[1]] = True
    assert (image[..., ~written] == MARK).all()
    for result, want in zip(runner.run([HostTensor(x)]), wanted, strict=True):
        assert result.shape == want.shape
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-4, atol=1e-4)
    if in_place is not None:
        steps = laid_out.specialiser.program_for([x]).steps
        assert ("put_channels" not in {step.fn.__name__ for step in steps}) == in_place
    plain = device.create_runner().run([HostTensor(x)])
    for result, want in zip(plain, wanted, strict=True):
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("begin", [0, 3, 16])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("config", [{}, {"EXECUTION_MODE_HINT": "ACCURACY"}])
def test_convolutions_write_in_place(begin, kernel, config):
    net = Net(1, 16, 9, 7)
    y = net.add("Relu", net.conv("x", 16, 24, kernel))
    check(net, [y], [begin], 43, in_place=True, **config)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pooling_writes_in_place(kind):
    net = Net(2, 8, 9, 7)
    x = net.conv("x", 8, 16)
    y = net.add(kind, x, kernel_shape=[3, 3], strides=[2, 2])
    check(net, [y], [5], 32, in_place=True)


def test_what_cannot_be_written_in_place_is_copied():
    net = Net(1, 8, 6, 6)
    x = net.conv("x", 8, 16)
    check(net, [net.add("Exp", net.add("Tanh", x))], [4], 24, in_place=False)


def test_several_parts_of_one_image():
    net = Net(1, 16, 8, 8)
    one = net.add("Relu", net.conv("x", 16, 8, 1))
    two = net.conv(one, 8, 16)
    three = net.add("MaxPool", net.conv("x", 16, 8), kernel_shape=[3, 3], pads=[1] * 4)
    check(net, [one, two, three], [24, 0, 16], 40)


def test_a_joined_image_as_a_part_of_a_larger_one():
    net = Net(1, 16, 8, 8)
    y = net.add("Concat", net.conv("x", 16, 8), net.conv("x", 16, 24, 1), axis=1)
    check(net, [y], [8], 48, in_place=True)


def test_halves_inside_and_singles_outside():
    net = Net(1, 16, 8, 8)
    y = net.conv(net.add("Relu", net.conv("x", 16, 32)), 32, 16)
    proto = net.model(y)
    device = compiled(proto, INFERENCE_PRECISION_HINT="bf16")
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    (port,) = device.outputs
    (layout,) = device.layouts()[port]
    part = type(layout)(layout.axes, layout.dtype, Window(16, 16, 48))
    (result,) = device.with_layouts({port: part}).create_runner().run([HostTensor(x)])
    (want,) = expected(proto, x)
    assert np.abs(result.numpy() - want).max() < 0.03 * np.abs(want).max()


def test_pictures_that_are_read_as_they_are():
    net = Net(1, 3, 32, 32)
    y = net.conv("x", 3, 8)
    check(net, [y], [5], 16, in_place=True)


def test_a_picture_s_convolution_before_others_in_a_concat():
    net = Net(1, 3, 32, 32)
    one, two = net.conv("x", 3, 8), net.conv("x", 3, 16)
    check_inside(net, net.add("Concat", one, two, one, axis=1))


def check_inside(net, y):
    proto = net.model(y)
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    np.testing.assert_allclose(compiled(proto)({"x": x})[0], expected(proto, x)[0], atol=1e-4)
