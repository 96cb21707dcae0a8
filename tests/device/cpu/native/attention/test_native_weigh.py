"""The softmax of one query's scores, at the edges of memory, beside numpy in float64."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from cpu_levels import float_levels

from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.llvm.attention.attend import in_pairs
from partita_cpu.nhwc.attention import WEIGH, head_kernels

from ..conftest import Guarded

KINDS = [
    (level, arithmetic)
    for level in float_levels()
    if level.native
    for arithmetic in (Arithmetic.F32, Arithmetic.BF16)
    if arithmetic is Arithmetic.F32 or in_pairs(level)
]


def weighed(level, arithmetic, scores, factor):
    """Weights as floats with what lies behind them, and their sum."""
    half, guarded = arithmetic.in_bfloat16, Guarded()
    room = -(-scores.size // (2 * level.lanes)) * 2 * level.lanes
    given = guarded.array(np.full(room, np.nan, np.float32))
    given[: scores.size] = scores
    to = guarded.array(np.full(room, 99, np.uint16)) if half else given
    call = ctypes.CFUNCTYPE(
        ctypes.c_float, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    )(int(head_kernels(level, arithmetic)[WEIGH]))
    total = call(given.ctypes.data, scores.size, factor, to.ctypes.data)
    found = (to.astype(np.uint32) << 16).view(np.float32) if half else to.copy()
    guarded.release()
    return found, total


@pytest.mark.parametrize(("level", "arithmetic"), KINDS)
@pytest.mark.parametrize("keys", [*range(1, 34), 49, 63, 64, 65, 95, 97, 128, 197])
def test_lengths(level, arithmetic, keys):
    rng = np.random.default_rng(keys)
    scores = (4 * rng.standard_normal(keys)).astype(np.float32)
    if keys > 2:
        scores[rng.integers(keys)] = -np.inf
    found, total = weighed(level, arithmetic, scores, 0.375)
    expected = np.exp((scores.astype(np.float64) - scores.max()) * 0.375)
    tolerance = {"rtol": 5e-3} if arithmetic.in_bfloat16 else {"rtol": 2e-6, "atol": 1e-30}
    np.testing.assert_allclose(found[:keys], expected, **tolerance)
    np.testing.assert_allclose(total, expected.sum(), rtol=2e-4 if arithmetic.in_bfloat16 else 2e-6)
    assert not found[keys:].any()


@pytest.mark.parametrize(("level", "arithmetic"), KINDS)
@pytest.mark.parametrize("keys", [5, 40, 133])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_is_no_number_makes_the_sum_none(level, arithmetic, keys, place, special):
    scores = np.linspace(-1, 1, keys, dtype=np.float32)
    scores[place] = special
    assert np.isnan(weighed(level, arithmetic, scores, 1.0)[1])
    hidden = np.full(keys, -np.inf, np.float32)
    assert np.isnan(weighed(level, arithmetic, hidden, 1.0)[1])
