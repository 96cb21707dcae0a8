"""Products of matrices of many terms, some terms after the others, at every level."""

from __future__ import annotations

import numpy as np
import pytest

from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import depth_parts
from partita_cpu.llvm.levels import EVERY
from partita_cpu.machine_model import MachineModel

from ..networks.test_native_layout import SETTINGS, Net, check
from ..networks.test_native_passes import steps_of

pytestmark = pytest.mark.usefixtures("level")


@pytest.mark.parametrize("residual", ["", "of x", "that dies"])
def test_terms_are_added_up_by_parts(level, residual, monkeypatch):
    """Of 1,024 terms 28 rows fit half of a cache of 256 KiB, of 256 all 70."""
    monkeypatch.setenv("PARTITA_CPU_CACHES", "32K/256K")
    net = Net(2, 35, 1024)
    w = net.const(values=net.rng.standard_normal((1024, 200)).astype(np.float32) / 32)
    y = net.add("Add", net.add("MatMul", "x", w), net.const(200))
    if residual:
        few = net.const(values=net.rng.standard_normal((1024, 200)).astype(np.float32) / 32)
        other = net.add("Tanh", net.add("MatMul", "x", few))
        y = net.add("Add", y, other)
        if residual == "of x":
            y = net.add("HardSwish", y)
            y = net.add("Mul", y, other)
    check(net, y, config=SETTINGS[0])
    found = steps_of(net, y, **SETTINGS[0]).count("multiply_tiles")
    if EVERY[level].lanes == 16 and not EVERY[level].tiles:
        assert found == (8 if residual else 4)


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "parts"),
    [
        (128, 3072, 768, 2),
        (128, 768, 3072, 1),
        (32, 4096, 4096, 2),
        (128, 4096, 1024, 4),
        (14, 4096, 4096, 1),  # all rows fit
        (128, 3072, 64, 1),  # weights that stay in the cache
        (128, 3000, 768, 1),  # of which no part is whole lines of the caches
    ],
)
def test_how_many_parts(rows, terms, columns, parts):
    machine = MachineModel(EVERY["avx512"], 1, CacheSizes(48 << 10, 1 << 20, 16 << 20))
    policy = PrecisionPolicy(machine, Arithmetic.F32, 1)
    assert depth_parts(policy, Images.matrix(rows, terms, columns)) == parts
