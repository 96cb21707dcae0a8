"""Scalar functions of kernels: their largest errors over all of float32, and special values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ml_dtypes import bfloat16

from partita_cpu.jit.deferred_numba import compiler
from partita_cpu.scalar import math as scalar

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def samples() -> np.ndarray:
    """Floats of every exponent and both signs, dense around 1, and the special ones."""
    patterns = np.arange(0, 0x7F800000, 9973, dtype=np.uint32)
    dense = np.random.default_rng(0).integers(0x3C000000, 0x43000000, 200_000, dtype=np.uint32)
    positive = np.concatenate([patterns, dense]).view(np.float32)
    special = np.array([0, np.inf, np.nan], np.float32)
    return np.concatenate([positive, -positive, special, -special])


def applied(function, x):
    @compiler().njit(error_model="numpy")
    def loop(x, y):
        for i in range(x.size):
            y[i] = function(x[i])

    y = np.empty_like(x)
    loop(x, y)
    return y


@pytest.mark.parametrize(
    ("name", "reference", "ulp"),
    [
        ("exp", np.exp, 1.1),
        ("tanh", np.tanh, 2.5),
        ("log", np.log, 1.1),
        ("erf", erf, 1.5),
        ("sigmoid", sigmoid, 2.5),
        ("softplus", softplus, 2.5),
    ],
)
def test_float32_error_in_ulp(name, reference, ulp):
    x = samples()
    got = applied(getattr(scalar, name), x)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
        rounded = exact.astype(np.float32)
        spacing = np.spacing(np.maximum(np.abs(rounded), np.float32(1e-37)))
        error = np.abs(got.astype(np.float64) - exact) / spacing
    finite = np.isfinite(rounded) & np.isfinite(got)
    # Functions made of exp_below_zero return 0 in place of what is hardly more than subnormal.
    tiny = np.abs(exact) < 2e-38
    assert error[finite & ~tiny].max() <= ulp
    assert (np.abs(got[tiny]) < 2e-38).all()
    # At the edge of overflow one of the two may be infinite, the other the largest float.
    edge = np.abs(np.where(np.isnan(exact), 0, exact)) > 3.4e38
    np.testing.assert_array_equal(got[~finite & ~edge], rounded[~finite & ~edge])


@pytest.mark.parametrize(
    ("name", "reference"), [("sine_below_limit", np.sin), ("cosine_below_limit", np.cos)]
)
def test_sine_and_cosine_error(name, reference):
    x = samples()
    x = x[np.abs(x) <= scalar.SINE_LIMIT]
    exact = reference(x.astype(np.float64))
    error = np.abs(applied(getattr(scalar, name), x) - exact)
    assert (error / np.spacing(np.abs(exact).astype(np.float32))).max() <= 2


@pytest.mark.parametrize(
    ("name", "reference"), [("expm1_below_zero", np.expm1), ("exp_below_zero", np.exp)]
)
def test_functions_of_negative_numbers(name, reference):
    x = samples()
    x = x[(x <= 0) & ((x > -87) | (x < -105))]
    got = applied(getattr(scalar, name), x)
    np.testing.assert_allclose(got, reference(x.astype(np.float64)), rtol=2e-7, atol=1e-45)


def test_rough_powers_are_as_exact_as_bfloat16():
    x = samples()
    x = x[x <= 0]
    got = applied(scalar.rough_power_of_two, x).astype(np.float64)
    exact = np.exp2(x.astype(np.float64))
    tiny = x < -125
    np.testing.assert_allclose(got[~tiny], exact[~tiny], rtol=8e-5)
    assert (got[tiny] <= 2.0**-124).all()
    assert (got >= 0).all()
    assert np.isnan(applied(scalar.rough_power_of_two, np.array([np.nan], np.float32))).all()


def test_rounding_to_bfloat16():
    x = np.abs(np.random.default_rng(4).standard_normal(1000)).astype(np.float32)
    x = np.append(x / x.max(), np.float32([0, 1, 2**-126, 1e-40]))
    bits = applied(scalar.round_to_bfloat16, x).astype(np.uint16)
    np.testing.assert_array_equal(bits.view(bfloat16), x.astype(bfloat16))


def test_normal_distribution():
    x = samples()
    got = applied(scalar.below_normal, x)
    exact = (1 + erf(x.astype(np.float64) * math.sqrt(0.5))) / 2
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-7)
    tail = (x < 0) & (x > -5)
    np.testing.assert_allclose(got[tail], exact[tail], rtol=1e-5)
    wide = x[np.abs(x) < 30].astype(np.float64)
    exact = (1 + erf(wide * math.sqrt(0.5))) / 2
    np.testing.assert_allclose(applied(scalar.below_normal, wide), exact, rtol=1e-15)


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_functions_keep_the_sign_of_zero(name):
    got = applied(getattr(scalar, name), np.array([-0.0, 0.0], np.float32))
    np.testing.assert_array_equal(np.signbit(got), [True, False])


@pytest.mark.parametrize("name", ["exp", "tanh", "log", "erf", "sigmoid", "softplus"])
def test_float64_is_exact_to_a_few_ulp(name):
    reference = {"sigmoid": sigmoid, "softplus": softplus, "erf": erf}.get(name)
    x = np.random.default_rng(1).uniform(0.01, 20, 1000)
    expected = (reference or getattr(np, name))(x)
    np.testing.assert_allclose(applied(getattr(scalar, name), x), expected, rtol=1e-15)


def test_row_maximum_finds_nan():
    @compiler().njit
    def top(row):
        return scalar.row_maximum(row)

    row = np.random.default_rng(2).standard_normal(100).astype(np.float32)
    assert top(row) == row.max()
    assert top(-np.abs(row)) == -np.abs(row).min()
    row[40] = np.nan
    assert np.isnan(top(row))
