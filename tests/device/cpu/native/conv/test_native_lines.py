"""Convolutions that read lines of an image where they lie, at every level."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.llvm.levels import EVERY
from partita_cpu.machine_model import MachineModel

from ..networks.test_native_layout import SETTINGS, Net, check

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""

MACHINE = MachineModel(EVERY["avx512"], 1, CacheSizes(48 << 10, 1 << 20, 16 << 20))
IMAGES = Images(
    *(1, 14, 14, 64, 64, 1, (3, 3)), begin=(1, 1), end=(1, 1), out_height=14, out_width=14
)
SEVEN_PIXELS = {
    "channels": 512,
    "stride": (2, 2),
    **dict.fromkeys(("width", "height"), 14),
    **dict.fromkeys(("out_width", "out_height"), 7),
}


@pytest.mark.parametrize(
    ("wanted", "change"),
    [
        (True, {}),
        (True, {"kernel": (1, 3), "begin": (0, 1), "end": (0, 1)}),
        (True, {"kernel": (3, 1), "begin": (1, 0), "end": (1, 0)}),
        (True, {"stride": (2, 2), "width": 28, "height": 28}),
        (True, {"stride": (2, 2), "width": 20, "height": 20, "out_width": 10, "out_height": 10}),
        (True, SEVEN_PIXELS),  # 4 KiB apart, but few of them
        (True, {"dilation": (2, 2), "begin": (2, 2), "end": (2, 2)}),
        (True, {"groups": 2}),
        (False, {"groups": 4}),  # runs of 16 channels
        (False, {"dilation": (2, 2), "end": (3, 3)}),  # no column of taps is always on the image
        (False, {"width": 13, "end": (1, 2)}),
        (False, {"channels": 1024}),  # weights of a column fill more than the cache
        (False, {"channels": 512, "stride": (2, 2), "width": 28, "height": 28}),  # pixels collide
    ],
)
def test_which_lines_are_read_where_they_lie(wanted, change):
    found = plan(replace(IMAGES, **change), MACHINE, Arithmetic.F32, 1)
    assert found.in_place == wanted


def test_what_changes_on_its_way_is_copied():
    changes = [Storage(scaled=True), Storage(half_in=True), Storage(computed=True)]
    assert not any(plan(IMAGES, MACHINE, Arithmetic.F32, 1, kept).in_place for kept in changes)
    assert not plan(IMAGES, MACHINE, Arithmetic.BF16, 1).in_place


@st.composite
def windows(draw):
    """Attributes of a convolution, and the size of its image."""
    kernel = draw(st.sampled_from([(3, 3), (3, 3), (1, 3), (5, 5), (2, 4), (7, 3)]))
    dilations = [draw(st.sampled_from([1, 1, 2])) for _ in range(2)]
    begin, end = ([draw(st.integers(0, 3)) for _ in range(2)] for _ in range(2))
    least = [(taps - 1) * gap + 1 for taps, gap in zip(kernel, dilations, strict=True)]
    return {
        "kernel": kernel,
        "strides": [draw(st.sampled_from([1, 1, 2])) for _ in range(2)],
        "dilations": dilations,
        "pads": [*begin, *end],
        "group": draw(st.sampled_from([1, 1, 2])),
        "size": [draw(st.integers(n, n + 30)) for n in least],
    }


@examples(24)
@given(windows(), st.integers(1, 2), st.sampled_from([24, 40]), st.booleans())
def test_random_lines(drawn, batch, outputs, residual):
    drawn = dict(drawn)
    size, kernel, group = drawn.pop("size"), drawn.pop("kernel"), drawn["group"]
    net = Net(batch, 80, *size)
    w = net.const(outputs, 80 // group, *kernel)
    y = net.add("Conv", net.add("Relu", "x"), w, net.const(outputs), **drawn)
    if residual:
        y = net.add("Add", y, net.add("Conv", "x", w, **drawn))
    check(net, net.add("HardSwish", y), config=SETTINGS[0])


def test_lines_among_other_channels_whose_sums_need_a_pass(level):
    net = Net(2, 40, 9, 17)
    x = net.add("Relu", "x")
    joined = net.add("Concat", net.conv(x, 40, 24, 1), net.conv(x, 40, 56), axis=1)
    halves = net.add("Relu", joined)
    y = net.add("Elu", net.conv(halves, 80, 36))
    check(net, net.conv(y, 36, 8, 1), config=SETTINGS[0])
