"""Convolutions of many channels, some channels after the others, at every level."""

from __future__ import annotations

import pytest

from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.kernels.nhwc import channel_parts
from partita_cpu.llvm.levels import EVERY
from partita_cpu.machine_model import MachineModel
from partita_cpu.winograd.tile_kind import TileKind

from ..networks.test_native_layout import SETTINGS, Net, check

pytestmark = pytest.mark.usefixtures("level")


def steps_of(monkeypatch):
    """What is recorded by parts; convolutions that minimal filtering would take, too."""
    monkeypatch.setattr("partita_cpu.winograd.steps.kind_for", lambda *_: TileKind.DIRECT)
    steps, emit = [], channel_parts.emit_in_parts

    def noted(*args):
        parts = args[-1]
        steps.extend([args[2].images.channels // parts] * parts)
        emit(*args)

    monkeypatch.setattr(channel_parts, "emit_in_parts", noted)
    return steps


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_channels_are_added_up_by_parts(level, stride, residual, monkeypatch):
    """Of 256 channels two lines of 28 pixels fit half of a cache of 256 KiB, of 128 six."""
    monkeypatch.setenv("PARTITA_CPU_CACHES", "32K/256K")
    steps = steps_of(monkeypatch)
    net = Net(2, 256, 9, 28)
    y = net.conv(net.add("Relu", "x"), 256, 40, strides=[stride, stride])
    if residual:
        y = net.add("Add", y, net.conv("x", 256, 40, 1, strides=[stride, stride]))
    check(net, net.add("HardSwish", y), config=SETTINGS[0])
    by_parts = stride == 1 and not EVERY[level].tiles
    assert steps == ([128, 128] if by_parts else [])


def test_parts_write_to_their_place_among_other_channels(level, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_CACHES", "32K/256K")
    steps = steps_of(monkeypatch)
    net = Net(1, 256, 8, 28)
    x = net.add("Relu", "x")
    joined = net.add("Concat", net.conv(x, 256, 24, 1), net.conv(x, 256, 40), axis=1)
    check(net, net.conv(net.add("Relu", joined), 64, 8, 1), config=SETTINGS[0])
    assert len(steps) == (0 if EVERY[level].tiles else 2)


@pytest.mark.parametrize(
    ("channels", "kernel", "width", "parts"),
    [
        (512, (3, 3), 28, 1),
        (1024, (3, 3), 28, 2),
        (2048, (3, 3), 28, 4),
        (1024, (3, 3), 7, 1),  # all lines fit
        (2048, (3, 3), 7, 2),
        (2048, (1, 1), 28, 1),
        (1000, (3, 3), 28, 1),  # of which no part is whole lines of the caches
    ],
)
def test_how_many_parts(channels, kernel, width, parts):
    begin = kernel[0] // 2, kernel[1] // 2
    images = Images(
        *(1, width, width, channels, 512, 1, kernel),
        begin=begin, end=begin, out_height=width, out_width=width,
    )  # fmt: skip
    machine = MachineModel(EVERY["avx512"], 1, CacheSizes(48 << 10, 1 << 20, 16 << 20))
    policy = PrecisionPolicy(machine, Arithmetic.F32, 1)
    assert channel_parts.channel_parts(policy, images, Storage()) == parts
