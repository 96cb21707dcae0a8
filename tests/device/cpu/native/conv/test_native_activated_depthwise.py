"""Depthwise convolutions whose results an activation follows that bounds do not express."""

from __future__ import annotations

import numpy as np
import pytest

from partita.lowering import Activation
from partita.lowering.geometry.windows import Window
from partita_cpu.gemm.fused_activation import activation_kernel
from partita_cpu.llvm.images.depthwise_pixels import products_of
from partita_cpu.llvm.levels import EVERY
from partita_cpu.nhwc.depthwise_direct import (
    Depthwise,
    activate_images,
    depthwise_images,
    depthwise_kernels,
    pack_row,
    pack_taps,
    places,
)

from ..gemm.test_native_tiles import ACTIVATIONS
from ..networks.test_native_halves import BF16, MODES
from ..networks.test_native_layout import Net, check
from ..networks.test_native_passes import steps_of
from .test_native_depthwise import KINDS, SENTINEL, loaded, stored, weighed

INF = float("inf")
WINDOW = Window(*((1, 9, 11), (1, 3, 3), (1, 2, 1), (1, 1, 1)), (0, 1, 1), (0, 1, 1), (1, 5, 11), 2)


@pytest.mark.parametrize(("level", "half"), KINDS)
@pytest.mark.parametrize("code", ACTIVATIONS)
@pytest.mark.parametrize(("channels", "before", "after"), [(70, 0, 0), (16, 0, 0), (33, 1, 20)])
def test_lines(level, half, code, channels, before, after, guarded):
    """Applied where results lie, to them alone; bfloat16 is rounded before and after it."""
    rng = np.random.default_rng(channels)
    x = guarded.array(stored(rng.standard_normal((2, 9, 11, channels)), half))
    w = rng.standard_normal((channels, 1, 3, 3)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32)
    y = guarded.array(stored(np.full((2, 5, 11, before + channels + after), SENTINEL), half))
    products = products_of(3, half, level)
    known = Depthwise(
        guarded.array(pack_taps(w, level.lanes, products=products)),
        guarded.array(pack_row(bias, level.lanes, channels, half)),
        depthwise_kernels(level, 3, 1, products),
        places(WINDOW, level, channels, channels, 0, half),
        *(-INF, INF, 0),
    )
    kernel = activation_kernel(level, Activation(code), half)
    for tid in range(5):
        share = kernel, tid, 5
        depthwise_images(x.reshape(-1), known, y.reshape(-1), y.shape[3], before, 2, *share)
    sums = weighed(WINDOW, np.asarray(loaded(x), np.float64), w, bias, 0, -INF, INF)
    if half:
        sums = loaded(stored(sums, True))
    found = loaded(y)
    inside = found[..., before : before + channels]
    off = {"rtol": 2**-6, "atol": 2**-8} if half else {"rtol": 1e-5, "atol": 2e-5}
    np.testing.assert_allclose(inside, ACTIVATIONS[code](sums), **off)
    inside[...] = SENTINEL
    np.testing.assert_array_equal(found, SENTINEL)


@pytest.mark.parametrize("level", [level for level, half in KINDS if half])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 20)])
def test_images_in_bfloat16(level, before, after, guarded):
    numbers = np.linspace(-9, 9, 7 * 50).reshape(7, 50)
    whole = np.full((7, before + 50 + after), SENTINEL, np.float64)
    whole[:, before : before + 50] = numbers
    y = guarded.array(stored(whole, True))
    for code, wanted in ACTIVATIONS.items():
        y[...] = stored(whole, True)
        kernel = activation_kernel(level, Activation(code), True)
        for tid in range(2):
            activate_images(y.reshape(-1), kernel, 50, y.shape[1], before, tid, 2)
        found = loaded(y)
        inside = found[:, before : before + 50]
        expected = wanted(loaded(stored(numbers, True)))
        np.testing.assert_allclose(inside, expected, rtol=2**-8, atol=2e-7)
        inside[...] = SENTINEL
        np.testing.assert_array_equal(found, SENTINEL)


def silu(net, x):
    return net.add("Mul", x, net.add("Sigmoid", x))


def gelu(net, x):
    root = net.const(values=np.float32(np.sqrt(2)))
    one, half = (net.const(values=np.float32(n)) for n in (1, 0.5))
    gate = net.add("Add", net.add("Erf", net.add("Div", x, root)), one)
    return net.add("Mul", net.add("Mul", x, gate), half)


def sigmoid(net, x):
    return net.add("Sigmoid", x)


def gated(net, x, channels):
    """By what the mean of an image says of its channels."""
    mean = net.add("GlobalAveragePool", x)
    gate = net.conv(silu(net, net.conv(mean, channels, 6, 1)), 6, channels, 1)
    return net.add("Mul", x, net.add("Sigmoid", gate))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("config", "tolerance"), MODES)
@pytest.mark.parametrize("activation", [silu, gelu, sigmoid])
@pytest.mark.parametrize(
    ("size", "attrs"),
    [
        (3, {}),
        (5, {"strides": [2, 2]}),
        (3, {"dilations": [2, 2], "pads": [2] * 4}),
        (3, {"strides": [3, 3]}),
        (4, {"pads": [1] * 4}),
    ],
)
def test_inverted_bottlenecks(level, config, tolerance, activation, size, attrs):
    """As EfficientNet and MaxViT have them; in bfloat16 from the first convolution to the last."""
    net = Net(2, 20, 14, 15)
    x = activation(net, net.conv("x", 20, 40, 1))
    x = activation(net, net.conv(x, 40, 40, size, group=40, **attrs))
    y = net.conv(gated(net, x, 40), 40, 24, 1)
    check(net, y, config=config, tolerance=tolerance)
    if EVERY[level].keeps_bfloat16 and config == BF16:
        steps = steps_of(net, y, **BF16)
        assert ("depthwise_images" in steps) or ("activate_images" in steps)


@pytest.mark.parametrize(("config", "tolerance"), MODES)
def test_images_of_one_pixel(level, config, tolerance):
    """Taps that reach padding alone are left out, and what is left is another window."""
    net = Net(2, 20, 1, 1)
    x = silu(net, net.conv("x", 20, 40, 1))
    x = silu(net, net.conv(x, 40, 40, 5, group=40))
    check(net, net.conv(x, 40, 24, 1), config=config, tolerance=tolerance)
