"""1x1 convolutions, depthwise ones and 1x1 ones as one step, a band of rows at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from partita.lowering.geometry.windows import Window
from partita.system.cache_sizes import CacheSizes
from partita_cpu.llvm.levels import AVX512
from partita_cpu.machine_model import MachineModel
from partita_cpu.nhwc import inverted_bottleneck
from partita_cpu.nhwc.inverted_bottleneck import (
    IMAGES,
    LEAST,
    LINES,
    PARTS,
    ROWS,
    Pixels,
    bands,
)

from ..networks.test_native_layout import Net, check, compiled
from ..networks.test_native_passes import CONFIGS, steps_of

STEP = "inverted_bottleneck"


@pytest.fixture(params=CONFIGS, ids=["accuracy", "performance", "bf16"])
def mode(request):
    return {"config": request.param[0], "tolerance": request.param[1]}


pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""


@pytest.fixture(autouse=True)
def small_bands(monkeypatch):
    """Bands of few rows (of 12 KB), also where most are moved, or computed by two threads."""
    monkeypatch.setenv("PARTITA_CPU_CACHES", "32K/32K")
    monkeypatch.setattr(inverted_bottleneck, "MOVED", 100)
    monkeypatch.setattr(inverted_bottleneck, "TWICE", {False: 100, True: 100})


def block(net, x, channels, wide, outputs, kernel=3, act="Relu", **attrs):
    y = net.add(act, net.conv(x, channels, wide, 1))
    y = net.add("HardSwish", net.conv(y, wide, wide, kernel, wide, **attrs))
    return net.conv(y, wide, outputs, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "wide"), [(3, 1, 48), (3, 2, 41), (5, 1, 20), (5, 2, 17), (7, 2, 18)]
)
def test_blocks_of_networks(kernel, stride, wide, batch, threads, level, mode):
    net = Net(batch, 8, 37, 21)
    x = net.conv("x", 8, 16)
    y = block(net, x, 16, wide, 16, kernel, strides=[stride] * 2)
    if stride == 1:
        y = net.add("Relu", net.add("Add", y, x))
    net_y = net.conv(y, 16, 5, 1)
    mode["config"] = {**mode["config"], "INFERENCE_NUM_THREADS": threads}
    check(net, net_y, **mode)
    assert steps_of(net, net_y, **mode["config"]).count(STEP) == 1


@pytest.mark.parametrize(
    "attrs",
    [
        {"pads": [0, 0, 0, 0]},
        {"pads": [2, 0, 1, 2]},
        {"pads": [2, 1, 2, 1], "dilations": [2, 1]},
        {"strides": [3, 1]},
    ],
    ids=str,
)
def test_windows_of_all_kinds(attrs, mode):
    net = Net(1, 8, 34, 23)
    y = block(net, net.conv("x", 8, 16), 16, 32, 12, act="HardSwish", **attrs)
    check(net, y, **mode)


def test_parts_of_larger_images(mode):
    """What is read and written lies among the channels of others."""
    net = Net(1, 8, 30, 30)
    x = net.add("Concat", net.conv("x", 8, 12), net.conv("x", 8, 20), axis=1)
    parts = [block(net, x, 32, 40, 12), block(net, x, 32, 24, 20), x]
    check(net, net.conv(net.add("Concat", *parts, axis=1), 64, 5), **mode)


def count(net, *outputs, **config):
    return steps_of(net, *outputs, INFERENCE_NUM_THREADS=2, **config).count(STEP)


def test_blocks_that_stay_apart():
    def parts(act="Relu", wide=32):
        net = Net(1, 8, 40, 28)
        x = net.conv("x", 8, 16)
        a = net.add(act, net.conv(x, 16, wide, 1))
        b = net.add("Relu", net.conv(a, wide, wide, 3, wide))
        return net, a, b, net.conv(b, wide, 16, 1)

    net, a, b, y = parts()
    assert count(net, y) == 1
    assert count(net, y, a) == count(net, y, b) == 0
    assert count(net, net.add("Add", y, net.conv(a, 32, 16, 1))) == 0
    net, *_, y = parts(act="Sigmoid")
    assert count(net, y) == 0


def test_infinity_and_nan_stay():
    net = Net(1, 4, 24, 24)
    wide = net.conv("x", 4, 32, 1, bias=False)
    ones = net.const(values=np.ones((32, 1, 3, 3), np.float32))
    weighed = net.add("Conv", wide, ones, group=32, pads=[1] * 4)
    y = net.conv(weighed, 32, 4, 1)
    assert count(net, y) == 1
    x = np.ones(net.shape, np.float32)
    x[0, :, 3, 4], x[0, :, 20, 9] = np.inf, np.nan
    found = np.isfinite(np.asarray(compiled(net.model(y))(x)[0]))[0].all(axis=0)
    wanted = np.full((24, 24), True)
    wanted[2:5, 3:6] = wanted[19:22, 8:11] = False
    np.testing.assert_array_equal(found, wanted)


def test_both_operations_are_in_the_profile():
    net = Net(1, 8, 28, 28)
    y = block(net, net.conv("x", 8, 16), 16, 24, 16)
    assert count(net, y) == 1
    request = compiled(net.model(y), PERF_COUNT=True).create_infer_request()
    request.infer({"x": np.zeros(net.shape, np.float32)})
    found = {info.node_name for info in request.get_profiling_info()}
    assert {node.name for node in net.nodes} <= found


def window(size, out, kernel=3, stride=1):
    side = kernel // 2
    sides = (1, kernel, kernel), (1, stride, stride), (1, 1, 1), (0, side, side), (0, side, side)
    return Window((1, size, size), *sides, (1, out, out), 2)


def test_bands_fill_their_memory(monkeypatch):
    monkeypatch.setattr(inverted_bottleneck, "TWICE", {False: 12, True: 15})
    machine = MachineModel(AVX512, 2, CacheSizes(48 << 10, 2 << 20, 0))
    rows = 4 * 112 * 96
    cut = bands(window(112, 56, stride=2), Pixels(4 * 96, 1, 0), machine, 2)
    assert cut[ROWS] * rows <= 768 << 10 < (cut[ROWS] + 2) * rows
    assert cut[ROWS] == 2 * (cut[LINES] - 1) + 3
    # One row has no room.
    assert bands(window(112, 112), Pixels(4 * 960, 1, 0), machine, 2) is None
    # Most rows would be computed twice.
    assert bands(window(56, 56, kernel=7), Pixels(4 * 512, 1, 0), machine, 2) is None
    # With four of five in float32, more of them in bfloat16.
    assert bands(window(14, 14), Pixels(384, 1, 0), machine, 2) is None
    assert bands(window(14, 14), Pixels(384, 1, 0, in_bfloat16=True), machine, 2) is not None


def test_rows_of_two_bands_are_moved(monkeypatch):
    monkeypatch.setattr(inverted_bottleneck, "TWICE", {False: 12, True: 15})
    monkeypatch.setattr(inverted_bottleneck, "MOVED", 2)
    machine = MachineModel(AVX512, 2, CacheSizes(32 << 10, 1 << 20, 0))
    cut = bands(window(56, 56), Pixels(4 * 144, 1, 0), machine, 2)
    assert (cut[LINES], cut[ROWS]) == (10, 12)
    # Not if more are moved than takes less time, nor those that two threads compute.
    assert bands(window(56, 56, kernel=5), Pixels(4 * 280, 1, 0), machine, 2) is not None
    assert bands(window(56, 56, kernel=5), Pixels(4 * 320, 1, 0), machine, 2) is None
    assert bands(window(56, 56), Pixels(4 * 144, 1, 0), machine, 16) is None


def test_bands_of_several_images(monkeypatch):
    monkeypatch.setattr(inverted_bottleneck, "TWICE", {False: 12, True: 15})
    machine = MachineModel(AVX512, 2, CacheSizes(48 << 10, 2 << 20, 0))
    pixels = Pixels(4 * 96, 1, 0)
    one, four = (bands(window(112, 56, stride=2), pixels, machine, 2, n) for n in (1, 4))
    assert list(one[:IMAGES]) == list(four[:IMAGES])
    assert (one[IMAGES], four[IMAGES]) == (1, 4)
    # Of an image that two threads share most rows would be computed twice, of two images none.
    small = window(7, 7, kernel=5), pixels, machine, 2
    assert bands(*small) is None
    cut = bands(*small, 2)
    assert (cut[LINES], cut[ROWS]) == (7, 7)


def test_rows_computed_twice_rather_than_fetched(monkeypatch):
    """By tiles, by several threads that may read all weights."""
    monkeypatch.setattr(inverted_bottleneck, "TWICE", {False: 12, True: 15})
    machine = MachineModel(AVX512, 2, CacheSizes(48 << 10, 2 << 20, 0))
    pixels = Pixels(2 * 384, 32, 256 << 10, in_bfloat16=True)
    cut = bands(window(14, 14), pixels, machine, 16)
    assert (cut[LINES], cut[ROWS], cut[LEAST]) == (1, 3, 3)
    for changed in ({"in_bfloat16": False}, {"least": 1}, {"weights": (256 << 10) + 1}):
        assert bands(window(14, 14), pixels._replace(**changed), machine, 16) is None
    # Not where a thread has several bands.
    assert bands(window(14, 14), pixels._replace(nbytes=12 << 10), machine, 5) is None


def test_threads_share_parts_of_lines_that_do_not_divide(monkeypatch):
    machine = MachineModel(AVX512, 2, CacheSizes(48 << 10, 2 << 20, 0))
    pixels = Pixels(2 * 144, 32, 0, in_bfloat16=True)

    def cut(shape, threads):
        made = bands(shape, pixels, machine, threads)
        return made[PARTS], made[LINES], made[ROWS]

    # 56 lines: seven halves for each of 16 threads, on four lines as before.
    assert cut(window(56, 56), 16) == (2, 4, 6)
    assert cut(window(56, 56), 14) == (1, 4, 6)
    # 28 lines: seven quarters, on three lines instead of two.
    assert cut(window(28, 28), 16) == (4, 3, 5)
    # 14 lines: parts would be on two lines, which need more rows than a line.
    assert cut(window(14, 14), 16) == (1, 1, 3)
    # 7 lines: halves, for twice as many threads.
    assert cut(window(14, 7, stride=2), 16) == (2, 1, 3)


def test_no_band_is_smaller_than_it_may_be(monkeypatch):
    monkeypatch.setattr(inverted_bottleneck, "LINE_PARTS", ())
    windows = itertools.product((8, 9, 14, 28), ((3, 1), (3, 2), (5, 2)), (1, 2, 3, 5, 16))
    for size, (kernel, stride), threads in windows:
        out = -(-size // stride)
        shape, machine = window(size, out, kernel, stride), MachineModel(AVX512)
        cut = bands(shape, Pixels(64, 1, 0), machine, threads)
        least = min(int(cut[ROWS]), size) * size
        cut = bands(shape, Pixels(64, least, 0), machine, threads)
        assert cut[LEAST] == min(cut[ROWS], size)
        assert bands(shape, Pixels(64, least + 1, 0), machine, threads) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 5, 14, 16])
@pytest.mark.parametrize(("size", "stride"), [(14, 1), (14, 2), (15, 2), (11, 1)])
def test_few_lines_for_each_of_many_threads(size, stride, threads, mode):
    """Bands at the edges of an image have rows that no window reads, where tiles need more."""
    net = Net(1, 16, size, size)
    y = block(net, net.conv("x", 16, 16), 16, 32, 16, strides=[stride] * 2)
    mode["config"] = {**mode["config"], "INFERENCE_NUM_THREADS": threads}
    check(net, y, **mode)
    assert steps_of(net, y, **mode["config"]).count(STEP) == 1


@pytest.mark.parametrize(("size", "batch"), [(7, 1), (5, 2)])
def test_few_pixels_of_many_channels(size, batch, mode):
    """Each thread computes its channels of both convolutions in front, and waits for no other."""
    net = Net(batch, 16, size, size)
    x = net.conv("x", 16, 16)
    y = block(net, x, 16, 507, 512)
    mode["config"] = {**mode["config"], "INFERENCE_NUM_THREADS": 16}
    check(net, y, **mode)
    assert steps_of(net, y, **mode["config"]).count("expanded_depthwise") == 1
