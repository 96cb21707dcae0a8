"""How exact products are, as predicted and as they are, and what is chosen by it."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.gemm.error_model import FITTED, excess, predicted_error
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.llvm.levels import AMX
from partita_cpu.machine_model import MachineModel

from ..conftest import Guarded, choices
from ..gemm.test_native_tiles import run

DEPTHS = (24, 96, 300, 1200, 4000)
PARTS = {
    Arithmetic.BF16: [(0, 0)],
    Arithmetic.BF16X3: [(0, 1), (0, 0), (1, 0)],
    Arithmetic.BF16X6: [(2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)],
}


def factors(depth):
    """What a layer of a trained network has: many zeros on the left, few large weights."""
    rng = np.random.default_rng(depth)
    x = np.maximum(rng.standard_normal((60, depth)), 0).astype(np.float32)
    w = (rng.standard_t(5, (depth, 90)) / np.sqrt(depth)).astype(np.float32)
    return x, w


def split(x, count):
    parts = []
    for _ in range(count):
        parts.append((x - sum(parts)).astype(ml_dtypes.bfloat16).astype(np.float32))
    return parts


def emulated(x, w, arithmetic):
    """Sums of products of bfloat16, as AMX computes them."""
    xs, ws = split(x, arithmetic.planes), split(w, arithmetic.planes)
    return sum(xs[of_x] @ ws[of_w] for of_w, of_x in PARTS[arithmetic])


def error(y, x, w):
    exact = x.astype(np.float64) @ w
    return np.abs(y - exact).max() / np.abs(exact).max()


@pytest.mark.parametrize("arithmetic", PARTS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_split_products_are_as_exact_as_predicted(arithmetic, depth):
    x, w = factors(depth)
    found = error(emulated(x, w, arithmetic), x, w)
    assert 1 / 4 < found / predicted_error(arithmetic, depth) < 4


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("depth", DEPTHS)
def test_kernels_are_as_exact_as_predicted(level, arithmetic, depth):
    guarded = Guarded()
    x, w = factors(depth)
    images = Images.matrix(len(x), depth, w.shape[1])
    y = run(guarded, plan(images, MachineModel(level), arithmetic, 2), level, x, w, None, None)
    found = error(y, x, w)
    guarded.release()
    assert found < 4 * predicted_error(arithmetic, depth)
    if arithmetic in (Arithmetic.BF16, Arithmetic.BF16X3):
        assert found > predicted_error(arithmetic, depth) / 4


def test_longer_sums_lose_less_by_splitting():
    for arithmetic in FITTED.keys() - {Arithmetic.F32}:
        off = [excess(arithmetic, depth) for depth in range(1, 5000)]
        assert all(a > b for a, b in itertools.pairwise(off))


SHAPES = [
    lambda depth, outputs: Images.matrix(200, depth, outputs),
    lambda depth, outputs: Images(1, 14, 14, depth, outputs, out_height=14, out_width=14),
    lambda depth, outputs: Images(
        1, 14, 14, depth, outputs, 1, (2, 2), out_height=13, out_width=13
    ),
]


@pytest.mark.parametrize("images_of", SHAPES, ids=["matrix", "pixels", "windows"])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("outputs", [31, 64, 128, 256, 511, 512, 2048])
def test_once_a_sum_is_long_enough_for_three_products_longer_ones_are(images_of, computed, outputs):
    policy = PrecisionPolicy(MachineModel(AMX), Arithmetic.BF16X3, 2)
    chosen = [
        policy.preferred_arithmetic(images_of(depth, outputs), computed) for depth in range(3, 1500)
    ]
    changes = [a for a, b in itertools.pairwise(chosen) if a is not b]
    assert changes in ([Arithmetic.F32, Arithmetic.BF16X6], [Arithmetic.F32], [])
    if outputs >= 64 or computed:
        assert chosen[-1] is Arithmetic.BF16X3


def test_sums_for_many_outputs_may_be_shorter():
    def shortest(outputs):
        policy = PrecisionPolicy(MachineModel(AMX), Arithmetic.BF16X3, 2)
        preferred = (
            policy.preferred_arithmetic(Images.matrix(200, depth, outputs))
            for depth in range(3, 1500)
        )
        return next(n for n, found in enumerate(preferred, 3) if found is Arithmetic.BF16X3)

    lengths = [shortest(outputs) for outputs in (64, 128, 511, 512, 4096)]
    assert lengths == sorted(lengths, reverse=True)
    assert 160 < lengths[-1] <= 256 < lengths[0] <= 288
