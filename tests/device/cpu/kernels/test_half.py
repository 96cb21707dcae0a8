"""Conversions of 16-bit floats, all bit patterns, against numpy and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from single_op import run_ours

from partita_cpu.kernels.half import narrow_kernel, widen_kernel

HALVES = [np.float16, ml_dtypes.bfloat16]


def same_bits_or_both_nan(got: np.ndarray, expected: np.ndarray) -> bool:
    bits = {2: np.uint16, 4: np.uint32}[got.dtype.itemsize]
    equal = got.view(bits) == expected.view(bits)
    nan = np.isnan(got.astype(np.float32)) & np.isnan(expected.astype(np.float32))
    return bool((equal | nan).all())


@pytest.mark.parametrize("dtype", HALVES)
def test_widen_every_pattern(dtype):
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    y = np.empty(x.size, np.float32)
    for tid in range(3):
        widen_kernel(x, y, tid, 3)
    with np.errstate(all="ignore"):
        assert same_bits_or_both_nan(y, x.astype(np.float32))


@pytest.mark.parametrize("dtype", HALVES)
def test_narrow_rounds_to_nearest_even(dtype):
    wide = np.arange(65536, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        exact = wide.astype(np.float32)
        around = [np.nextafter(exact, np.float32(sign * np.inf)) for sign in (-1, 1)]
        between = (exact[1:] + exact[:-1]) / np.float32(2)
    noise = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    x = np.concatenate([exact, *around, between, noise.view(np.float32)])
    y = np.empty(x.size, dtype)
    narrow_kernel(x, y, 0, 1)
    with np.errstate(all="ignore"):
        assert same_bits_or_both_nan(y, x.astype(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_an_operator_computes_halves_through_float32(dtype):
    x = np.linspace(-6, 6, 101).astype(dtype)
    (y,) = run_ours("Sigmoid", [x])
    expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_array_equal(y, expected.astype(np.float32).astype(dtype))
