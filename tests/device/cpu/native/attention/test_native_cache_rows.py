"""The kernels of attention of few queries over rows of a cache, beside float64."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import given
from hypothesis import strategies as st
from int8_rows import decoded, encoded
from sampling import examples

from partita_cpu.gemm.attention_kernels import MOST_QUERIES, SCORES, few_query_kernels
from partita_cpu.llvm.attention.attend_few import Elements
from partita_cpu.llvm.levels import Level

from ..conftest import Guarded

LEVELS = float_levels()[1:]
TYPES = {
    Elements.FLOAT32: np.float32,
    Elements.FLOAT16: np.float16,
    Elements.BFLOAT16: ml_dtypes.bfloat16,
}
BLOCK = 80
"""Rows of a call at most here."""


def call(address: int, *args: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(int(address))(*args)


def rows_of(elements: Elements, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows as a cache has them, as bytes, and the numbers that stand there."""
    if elements is Elements.INT8:
        rows = encoded(numbers)
        return rows.view(np.uint8), decoded(rows, numbers.shape[-1]).astype(np.float64)
    rounded = numbers.astype(TYPES[elements])
    return rounded.view(np.uint8), rounded.astype(np.float64)


def whole(count: int, level: Level) -> int:
    return -(-count // level.lanes) * level.lanes


SIZES = st.one_of(st.integers(1, 260), st.sampled_from([32, 64, 80, 96, 128, 256]))


@pytest.mark.parametrize("elements", Elements)
@pytest.mark.parametrize("level", LEVELS)
@examples(40)
@given(size=SIZES, count=st.integers(1, BLOCK), seed=st.integers(0, 99), at_end=st.booleans())
def test_scores(level, elements, size, count, seed, at_end):
    rng, guarded = np.random.default_rng(seed), Guarded()
    kernels = few_query_kernels(level, elements)
    given_keys, keys = rows_of(elements, rng.standard_normal((count, size)).astype(np.float32))
    rows = guarded.array(given_keys, at_end)
    for queries in range(1, kernels[MOST_QUERIES] + 1):
        q = guarded.array(rng.standard_normal((queries, size)).astype(np.float32), at_end)
        scores = guarded.array(np.full((queries, whole(count, level)), np.nan, np.float32), at_end)
        places = q.ctypes.data, size, rows.ctypes.data, rows[0].nbytes, count
        call(kernels[SCORES + queries - 1], *places, scores.ctypes.data, scores[0].nbytes)
        wanted = q.astype(np.float64) @ keys.T
        bound = np.abs(q).astype(np.float64) @ np.abs(keys).T
        assert (np.abs(scores[:, :count] - wanted) <= 1e-6 * bound + 1e-30).all()
    guarded.release()


@pytest.mark.parametrize("elements", Elements)
@pytest.mark.parametrize("level", LEVELS)
@examples(40)
@given(size=SIZES, count=st.integers(1, BLOCK), seed=st.integers(0, 99), at_end=st.booleans())
def test_sums(level, elements, size, count, seed, at_end):
    rng, guarded = np.random.default_rng(seed), Guarded()
    kernels = few_query_kernels(level, elements)
    given_rows, values = rows_of(elements, rng.standard_normal((count, size)).astype(np.float32))
    rows = guarded.array(given_rows, at_end)
    for queries in range(1, kernels[MOST_QUERIES] + 1):
        weights = np.full((queries, whole(count, level)), np.nan, np.float32)
        weights[:, :count] = rng.random((queries, count))
        wanted = weights[:, :count].astype(np.float64) @ values
        bound = weights[:, :count].astype(np.float64) @ np.abs(values)
        y = guarded.array(rng.standard_normal((queries, size)).astype(np.float32), at_end)
        shares = guarded.array(rng.random(queries).astype(np.float32), at_end)
        wanted += shares[:, None].astype(np.float64) * y
        bound += np.abs(y)
        given_weights = guarded.array(weights, at_end)
        places = given_weights.ctypes.data, given_weights[0].nbytes, count
        cache = rows.ctypes.data, rows[0].nbytes, size
        address = kernels[SCORES + kernels[MOST_QUERIES] + queries - 1]
        call(address, *places, *cache, y.ctypes.data, shares.ctypes.data)
        assert (np.abs(y - wanted) <= 1e-6 * bound + 1e-30).all()
    guarded.release()


@pytest.mark.parametrize("elements", TYPES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_with_its_key(level, elements, number, guarded):
    """Of 21 keys the third has one such number, and so has its score alone."""
    kernels, size = few_query_kernels(level, elements), 19
    keys = np.ones((21, size), np.float32)
    keys[2, 17] = number
    rows = guarded.array(rows_of(elements, keys)[0])
    q = guarded.array(np.ones((1, size), np.float32))
    scores = guarded.array(np.zeros(whole(21, level), np.float32))
    places = q.ctypes.data, size, rows.ctypes.data, rows[0].nbytes, 21
    call(kernels[SCORES], *places, scores.ctypes.data, 0)
    np.testing.assert_equal(scores[2], np.float32(number))
    np.testing.assert_array_equal(np.delete(scores[:21], 2), np.float32(size))
