"""Convolutions in groups of few channels, several in a vector, against float64 sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.kernels.nhwc import channel_groups
from partita_cpu.llvm.levels import EVERY
from partita_cpu.llvm.tiles.fma_groups import GROUPS
from partita_cpu.machine_model import MachineModel

from ..conftest import CACHES, Guarded
from ..gemm.test_native_tiles import convolve, run
from ..networks.test_native_layout import LEVELS, Net, check

MODES = {"EXECUTION_MODE_HINT": "ACCURACY"}, {"INFERENCE_PRECISION_HINT": "bf16"}
LEVELS_OF_TILES = [level for level in float_levels() if level.native]


@st.composite
def convolutions(draw):
    """Of groups that several vectors, or parts of one, are made of."""
    group_channels = draw(st.sampled_from(GROUPS))
    channels = group_channels * draw(st.integers(2, 140 // group_channels))
    sizes = []
    for _ in range(2):
        kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 2))
        dilation = draw(st.sampled_from([1, 1, 2, 3]))
        reach = (kernel - 1) * dilation + 1
        begin, end = (draw(st.integers(0, min(2, reach - 1))) for _ in range(2))
        size = draw(st.integers(max(1, reach - begin - end), 40))
        out = (size + begin + end - reach) // stride + 1
        sizes.append((size, kernel, stride, dilation, begin, end, out))
    size, *around, out = zip(*sizes, strict=True)
    batch = draw(st.integers(1, 2))
    return Images(batch, *size, channels, channels, channels // group_channels, *around, *out)


@pytest.mark.parametrize("level", LEVELS_OF_TILES)
@examples(40)
@given(
    images=convolutions(),
    seed=st.integers(0, 99),
    threads=st.integers(1, 3),
    caches=st.sampled_from([*CACHES.values()]),
    special=st.sampled_from([1.0, np.inf, np.nan]),
)
def test_random_groups(level, images, seed, threads, caches, special):
    """Numbers that are not finite reach their group and no other, and the memory is theirs."""
    group_channels = images.channels // images.groups
    if group_channels > level.lanes:
        return
    joined = replace(images, groups=1, merged_group_channels=group_channels)
    cut = plan(joined, MachineModel(level, 2, caches), Arithmetic.F32, threads)
    if cut.source is not Source.HALO:
        return
    rng = np.random.default_rng(seed)
    pixels = images.batch * images.height * images.width
    x = rng.standard_normal((pixels, images.channels)).astype(np.float32)
    w = rng.standard_normal((images.outputs, group_channels, *images.kernel)).astype(np.float32)
    bias = rng.standard_normal(images.outputs).astype(np.float32)
    residual = rng.standard_normal((images.pixels, images.outputs)).astype(np.float32)
    x[rng.integers(pixels), rng.integers(images.channels)] *= special
    guarded = Guarded()
    y = run(guarded, cut, level, x, w, bias, residual, threads=threads)
    guarded.release()
    with np.errstate(invalid="ignore"):
        wanted = convolve(images, x, w) + bias + residual
    reached = ~np.isfinite(wanted)
    assert not np.isfinite(y[reached]).any()
    np.testing.assert_allclose(y[~reached], wanted[~reached], atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("config", MODES)
@pytest.mark.parametrize("group_channels", GROUPS)
@pytest.mark.parametrize("name", LEVELS)
def test_whole_networks(name, group_channels, config, monkeypatch):
    """Strided, with an activation, a residual, a place among other channels, in 16 bits or not."""
    monkeypatch.setenv("PARTITA_CPU_ISA", name)
    made, emit = [], channel_groups.emit_product
    monkeypatch.setattr(
        channel_groups,
        "emit_product",
        lambda *a: (made.append(a[2].images.merged_group_channels), emit(*a)),
    )
    channels = 13 * group_channels
    net = Net(2, 24, 17, 19)
    a = net.add("Relu", net.conv("x", 24, channels, 1))
    b = net.add("HardSwish", net.conv(a, channels, channels, group=13))
    c = net.add("Add", net.conv(b, channels, channels, group=13), a)
    d = net.add("Sigmoid", net.conv(c, channels, channels, group=13, strides=[2, 2]))
    e = net.add("Concat", d, net.conv(c, channels, 24, 3, strides=[2, 2]), axis=1)
    level, narrow = EVERY[name], "INFERENCE_PRECISION_HINT" in config
    rounds = narrow and level.dots_bfloat16
    check(net, net.conv(e, channels + 24, 8, 1), config=config, tolerance=3e-2 if rounds else 4e-6)
    able = group_channels <= level.lanes and not (
        rounds and group_channels > channel_groups.ROUNDED
    )
    assert made == ([group_channels] * 3 if able else [])
