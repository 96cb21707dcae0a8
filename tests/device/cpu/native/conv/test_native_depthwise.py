"""Depthwise convolutions where images lie, alone and with the product that reads them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.lowering.geometry.windows import Window
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.packing.weights import pack, pack_bias
from partita_cpu.gemm.product_records import Epilogue, ProductArrays, TileContext
from partita_cpu.gemm.tile_kernels import tile_kernels
from partita_cpu.llvm.images.depthwise_pixels import ACROSS, STRIDES, Products, products_of
from partita_cpu.machine_model import MachineModel
from partita_cpu.nhwc.depthwise_direct import (
    Depthwise,
    channel_shares,
    depthwise_images,
    depthwise_kernels,
    pack_row,
    pack_taps,
    places,
    takes,
)
from partita_cpu.nhwc.depthwise_separable import separable_convolution

from ..conftest import GATES, NANS, TOLERANCE, Guarded, choices, gated, own_share_left
from ..networks.test_native_layout import Net, check, compiled
from ..networks.test_native_passes import CONFIGS, steps_of

INF = float("inf")
BFLOAT16 = ml_dtypes.bfloat16
KINDS = [
    (level, half)
    for level in float_levels()[1:]
    for half in (False, True)[: 1 + level.keeps_bfloat16]
]
SENTINEL = 7


def stored(array, half):
    """The array as kernels take it: float32, or the bits of bfloat16."""
    return array.astype(BFLOAT16).view(np.uint16) if half else array.astype(np.float32)


def loaded(array):
    """What an array in memory stands for."""
    return array.view(BFLOAT16).astype(np.float64) if array.dtype == np.uint16 else array


@st.composite
def windows(draw):
    down, across = draw(st.integers(1, 7)), draw(st.sampled_from(ACROSS))
    dilation = draw(st.integers(1, 2))
    reach = (down - 1) * dilation + 1, across
    begin, end, size, out, strides = [], [], [], [], []
    for axis in range(2):
        low, high = draw(st.integers(0, reach[axis])), draw(st.integers(0, 3))
        n = draw(st.integers(max(1, reach[axis] - low - high), 24))
        strides.append(draw(st.integers(1, 3) if axis == 0 else st.sampled_from(STRIDES)))
        out.append((n + low + high - reach[axis]) // strides[axis] + 1)
        for values, value in ((begin, low), (end, high), (size, n)):
            values.append(value)
    parts = ((1, *size), (1, down, across), (1, *strides), (1, dilation, 1))
    return Window(*parts, (0, *begin), (0, *end), (1, *out), 2)


def weighed(window, x, w, bias, gate, low=-2.0, high=3.0):
    """In float64, tap by tap."""
    (_, top, left), (_, bottom, right) = window.begin, window.end
    x = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    _, oh, ow = window.out
    y = np.zeros((x.shape[0], oh, ow, x.shape[3]))
    for a in range(window.kernel[1]):
        for b in range(window.kernel[2]):
            rows = slice(a * window.dilation[1], None, window.stride[1])
            y += x[:, rows, b :: window.stride[2]][:, :oh, :ow] * w[:, 0, a, b]
    return gated(np.clip(y + bias, low, high), gate)


@pytest.mark.parametrize(("level", "half"), KINDS)
@examples(60)
@given(
    window=windows(),
    channels=st.integers(1, 70),
    beside=st.tuples(*[st.sampled_from([0, 1, 20])] * 4),
    gate=st.sampled_from(GATES),
    batch=st.integers(1, 2),
    threads=st.integers(1, 5),
    shares=st.integers(1, 3),
    far=st.booleans(),
)
def test_images(level, half, window, channels, beside, gate, batch, threads, shares, far):
    rng = np.random.default_rng(channels)
    guarded, bounds = Guarded(), (-INF, INF) if gate else (-2.0, 3.0)
    before_x, after_x, before_y, after_y = beside
    shape = (batch, *window.size[1:], before_x + channels + after_x)
    whole = stored(rng.standard_normal(shape), half)
    w = loaded(stored(rng.standard_normal((channels, 1, *window.kernel[1:])), half))
    bias = rng.standard_normal(channels).astype(np.float32)
    lanes, products = level.lanes, products_of(window.kernel[2], half, level)
    shape = (batch, *window.out[1:], before_y + channels + after_y)
    y = guarded.array(stored(np.full(shape, SENTINEL), half))
    times = np.zeros(shape, np.int64)
    for tid in range(threads):
        before = y.copy()
        y[...] = stored(np.full(shape, SENTINEL), half)
        depthwise_images(
            guarded.array(whole).reshape(-1),
            Depthwise(
                guarded.array(pack_taps(w, lanes, products=products)),
                guarded.array(pack_row(bias, lanes, channels, half)),
                depthwise_kernels(level, window.kernel[2], window.stride[2], products),
                places(window, level, channels, whole.shape[3], before_x, half, far),
                *(*bounds, gate),
            ),
            y.reshape(-1),
            *(y.shape[3], before_y, shares, 0, tid, threads),
        )
        written = loaded(y) != SENTINEL
        times += written
        np.copyto(y, before, where=~written)
    assert times.max() == 1  # no share writes what is another's
    x = np.asarray(loaded(whole)[..., before_x : before_x + channels], np.float64)
    found = loaded(y)
    inside = found[..., before_y : before_y + channels]
    wanted = weighed(window, x, w, bias, gate, *bounds)
    np.testing.assert_allclose(inside, wanted, rtol=8e-3 if half else 1e-5, atol=2e-5)
    inside[...] = SENTINEL
    np.testing.assert_array_equal(found, SENTINEL)
    guarded.release()


def test_weights_in_pairs_are_rounded_and_the_last_of_a_row_stands_in_both_halves():
    w = np.random.default_rng(0).standard_normal((36, 1, 2, 5)).astype(np.float32)
    found = pack_taps(w, 16, products=Products.PAIRS).reshape(3, 2, 5, 16)
    halves = loaded(found[:2].view(np.uint16).reshape(2, 2, 5, 16, 2)[:, :, :3])
    rounded = loaded(stored(w[:32, 0], True)).reshape(16, 2, 2, 5).transpose(1, 2, 3, 0)
    np.testing.assert_array_equal(halves[..., 0], rounded[:, :, [0, 2, 4]])
    np.testing.assert_array_equal(halves[..., 1], rounded[:, :, [1, 3, 4]])
    np.testing.assert_array_equal(found[2, :, :, :4], w[32:, 0].transpose(1, 2, 0))


def test_weights_that_bfloat16_cannot_hold_are_not_paired():
    (level, *_) = [level for level, half in KINDS if half and not level.tiles]
    assert products_of(5, True, level) is Products.PAIRS
    assert products_of(5, True, level, finite=False) is Products.HALVES
    assert products_of(3, True, level) is Products.HALVES
    assert products_of(5, False, level) is Products.FLOATS


def test_few_pixels_are_shared_by_channels():
    def shares(size, channels, threads):
        sides = (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), (0, 1, 1)
        window = Window((1, size, size), *sides, (1, size, size), 2)
        return channel_shares(window, 1, channels, threads)

    assert shares(7, 960, 1) == shares(14, 576, 2) == shares(112, 32, 16) == 1
    assert shares(7, 960, 16) == 15  # two groups of 32 channels of all pixels
    assert 1 < shares(14, 576, 16) < 15  # some lines each


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "begin", "taken"),
    [
        ((3, 3), (1, 1), (1, 1), (1, 1), True),
        ((9, 5), (3, 2), (2, 1), (0, 0), True),
        ((3, 4), (1, 1), (1, 1), (1, 1), False),
        ((3, 3), (1, 3), (1, 1), (1, 1), False),
        ((3, 3), (1, 1), (1, 2), (1, 1), False),
        ((3, 3), (1, 1), (1, 1), (1, -1), False),
    ],
)
def test_windows_that_there_are_kernels_for(kernel, stride, dilation, begin, taken):
    sides = (0, *begin), (0, 1, 1)
    window = Window((1, 30, 30), (1, *kernel), (1, *stride), (1, *dilation), *sides, (1, 9, 9), 2)
    assert takes(window) is taken


JOINED = [
    (level, arithmetic)
    for level, arithmetic in choices()
    if arithmetic is not Arithmetic.BF16X6
    and (arithmetic is not Arithmetic.BF16 or level.keeps_bfloat16)
]
"""What is weighed on the way is kept in two parts at most; in one, if images are so too."""


def run_joined(guarded, level, arithmetic, window, x, taps, offset, w, bias, residual, threads):
    """Depthwise convolution between 0 and 6, then a product between -1.5 and 2."""
    batch, channels, outputs = x.shape[0], x.shape[3], w.shape[0]
    _, oh, ow = window.out
    images = Images(batch, oh, ow, channels, outputs, out_height=oh, out_width=ow)
    cut = plan(images, MachineModel(level), arithmetic, threads, Storage(computed=True))
    half, lanes = arithmetic is Arithmetic.BF16, level.lanes
    products = products_of(window.kernel[2], half, level)
    y = guarded.array(np.full((images.pixels, outputs), SENTINEL, np.float32))
    scratch = np.full(threads * cut.thread_bytes, 255, np.uint8)
    for tid in range(threads):
        separable_convolution(
            guarded.array(stored(x, half)).reshape(-1),
            Depthwise(
                guarded.array(pack_taps(taps, lanes, cut.padded, products)),
                guarded.array(pack_row(offset, lanes, cut.padded, half)),
                depthwise_kernels(level, window.kernel[2], window.stride[2], products),
                places(window, level, channels, channels, 0, half),
                *(0.0, 6.0, 0),
            ),
            ProductArrays(
                guarded.array(pack(cut, w)),
                guarded.array(pack_bias(cut, bias)),
                (y if residual is None else guarded.array(residual)).reshape(-1),
                y.reshape(-1),
            ),
            TileContext(
                scratch,
                cut.offsets,
                tile_kernels(level, arithmetic),
                cut.table,
                own_share_left(tid, threads),
            ),
            Epilogue(int(residual is not None), -1.5, 2.0, 0, 0, 0.0, 0.0),
            *(tid, threads),
        )
    return y.reshape(batch, oh, ow, outputs)


@pytest.mark.parametrize(("level", "arithmetic"), JOINED)
@examples(40)
@given(
    window=windows(),
    channels=st.integers(2, 100),
    outputs=st.integers(1, 70),
    batch=st.integers(1, 2),
    added=st.booleans(),
    threads=st.integers(1, 3),
)
def test_joined(level, arithmetic, window, channels, outputs, batch, added, threads):
    rng = np.random.default_rng(channels + outputs)
    guarded = Guarded()
    x = rng.standard_normal((batch, *window.size[1:], channels)).astype(np.float32)
    if arithmetic is Arithmetic.BF16:
        x = x.astype(BFLOAT16).astype(np.float32)
    taps = rng.standard_normal((channels, 1, *window.kernel[1:])).astype(np.float32)
    offset = rng.standard_normal(channels).astype(np.float32)
    w = (rng.standard_normal((outputs, channels, 1, 1)) / channels**0.5).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    shape = (batch, *window.out[1:], outputs)
    residual = rng.standard_normal(shape).astype(np.float32) if added else None
    sizes = (window, x, taps, offset, w, bias, residual, threads)
    found = run_joined(guarded, level, arithmetic, *sizes)
    between = weighed(window, x, taps, offset, 0, 0.0, 6.0)
    wanted = between @ w[:, :, 0, 0].T.astype(np.float64) + bias
    scale = max(np.abs(wanted).max(), 1.0)
    wanted = np.clip(wanted + (0 if residual is None else residual), -1.5, 2)
    assert np.abs(found - wanted).max() <= TOLERANCE[arithmetic] * scale
    guarded.release()


@pytest.mark.parametrize(("level", "arithmetic"), JOINED)
@pytest.mark.parametrize("channels", [24, 32, 71])
@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("nan", NANS)
def test_infinity_and_nan_stay(level, arithmetic, channels, side, nan, guarded):
    """Infinity has no lower half, and must not meet the zeros that fill up a run or a pair."""
    beside = side // 2
    pads = (0, beside, beside), (0, beside, beside)
    sides = (1, 9, 9), (1, side, side), (1, 1, 1), (1, 1, 1), *pads, (1, 9, 9)
    window = Window(*sides, 2)
    x = np.ones((1, 9, 9, channels), np.float32)
    x[0, 2, 2, 3] = np.inf
    x.view(np.uint32)[0, 7, 7, 5] = nan
    taps = np.ones((channels, 1, side, side), np.float32)
    w = np.ones((4, channels, 1, 1), np.float32)
    images = Images(1, 9, 9, channels, 4, out_height=9, out_width=9)
    cut = plan(images, MachineModel(level), arithmetic, 2, Storage(computed=True))
    half, lanes = arithmetic is Arithmetic.BF16, level.lanes
    products = products_of(side, half, level)
    with np.errstate(invalid="ignore"):  # signalling NaN
        pixels = stored(x, half).reshape(-1)
    y = guarded.array(np.zeros((81, 4), np.float32))
    for tid in range(2):
        separable_convolution(
            pixels,
            Depthwise(
                pack_taps(taps, lanes, cut.padded, products),
                pack_row(None, lanes, cut.padded),
                depthwise_kernels(level, side, 1, products),
                places(window, level, channels, channels, 0, half),
                *(-INF, INF, 0),
            ),
            ProductArrays(pack(cut, w), pack_bias(cut, None), *[y.reshape(-1)] * 2),
            TileContext(
                np.zeros(2 * cut.thread_bytes, np.uint8),
                cut.offsets,
                tile_kernels(level, arithmetic),
                cut.table,
                own_share_left(tid, 2),
            ),
            Epilogue(0, -INF, INF, 0, 0, 0.0, 0.0),
            *(tid, 2),
        )
    y = y.reshape(9, 9, 4)
    wanted = np.full((9, 9), False)
    wanted[max(0, 2 - beside) : 3 + beside, max(0, 2 - beside) : 3 + beside] = True
    np.testing.assert_array_equal(np.isposinf(y[..., 0]), wanted)
    wanted[...] = False
    wanted[7 - beside :, 7 - beside :] = True
    np.testing.assert_array_equal(np.isnan(y[..., 0]), wanted)


@pytest.fixture(params=CONFIGS, ids=["accuracy", "performance", "bf16"])
def mode(request):
    return {"config": request.param[0], "tolerance": request.param[1]}


def block(net, x, channels, wide, outputs, kernel=3, stride=1):
    """Expanded, weighed, and brought together."""
    y = net.add("Relu", net.conv(x, channels, wide, 1))
    y = net.add("HardSwish", net.conv(y, wide, wide, kernel, wide, strides=[stride] * 2))
    return net.conv(y, wide, outputs, 1)


@pytest.mark.parametrize(
    ("kernel", "stride", "wide"), [(3, 1, 48), (3, 2, 40), (5, 1, 72), (7, 1, 9)]
)
def test_blocks_of_networks(kernel, stride, wide, level, mode):
    net = Net(1, 8, 21, 19)
    x = net.conv("x", 8, 16)
    y = block(net, x, 16, wide, 16, kernel, stride)
    if stride == 1:
        y = net.add("Relu", net.add("Add", y, x))
    check(net, net.conv(y, 16, 5, 1), **mode)


@pytest.mark.parametrize("kernel", [9, 13, 31])
def test_windows_of_many_taps(kernel, level, mode):
    net = Net(1, 8, 19, 23)
    y = net.add("Relu", net.conv("x", 8, 150, 1))
    check(net, net.conv(net.conv(y, 150, 150, kernel, 150), 150, 5, 1), **mode)


def test_blocks_that_are_concatenated(level, mode):
    net = Net(1, 8, 14, 14)
    x = net.conv("x", 8, 16)
    parts = [block(net, x, 16, 32, 12), block(net, x, 16, 32, 20), x]
    check(net, net.conv(net.add("Concat", *parts, axis=1), 48, 5), **mode)


def count(net, *outputs, **config):
    return steps_of(net, *outputs, **config).count("separable_convolution")


def test_pairs_become_one_step(level):
    net = Net(1, 8, 28, 28)
    y = net.conv(net.conv(net.conv("x", 8, 48), 48, 48, 3, 48), 48, 16, 1)
    assert count(net, y) == 1
    assert count(net, y, INFERENCE_NUM_THREADS=1) == 1


def test_pairs_that_stay_apart(level):
    def pair(activation="Relu", **attrs):
        net = Net(1, 8, 28, 28)
        y = net.add(activation, net.conv(net.conv("x", 8, 32), 32, 32, 3, 32))
        return net, y, net.conv(y, 32, 16, 1, **attrs)

    net, between, y = pair()
    assert count(net, y) == 1
    assert count(net, y, between) == 0
    assert count(net, net.add("Mul", y, net.conv(between, 32, 16, 1))) == 0
    for net, _, y in (pair("Sigmoid"), pair(strides=[2, 2]), pair(pads=[1, 1, 1, 1])):
        assert count(net, y) == 0
    # More weights than pixels: threads share columns, and each would weigh all pixels.
    net = Net(1, 256, 5, 5)
    y = net.conv(net.conv(net.conv("x", 256, 512, 1), 512, 512, 3, 512), 512, 512, 1)
    assert count(net, y, INFERENCE_NUM_THREADS=2) == 0


def test_both_operations_are_in_the_profile(level):
    net = Net(1, 8, 28, 28)
    y = block(net, net.conv("x", 8, 16), 16, 48, 16)
    request = compiled(net.model(y), PERF_COUNT=True).create_infer_request()
    request.infer({"x": np.zeros(net.shape, np.float32)})
    found = {info.node_name for info in request.get_profiling_info()}
    assert {node.name for node in net.nodes} <= found
