"""Runs of float32 as two or three bfloat16 that add up to them, as AMX multiplies them."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita_cpu.jit.isa import available
from partita_cpu.jit.llvm_kernel import addresses

from ..conftest import INFINITIES, NANS, Guarded

LEVELS = [level for level in available() if level.tiles]
NAMES = {1: "bf16", 2: "bf16x3", 3: "bf16x6"}
"""Behind the names of kernels, by how many parts they write."""

NUMBERS = 42
"""Of a run with special ones among them."""

LEFT = {2: 2.0**-17, 3: 0.0}
"""What parts may leave of a number, by how many they are."""


def call(kernel, *arguments):
    """Calls a kernel with integers and floats."""
    kinds = [ctypes.c_float if isinstance(a, float) else ctypes.c_int64 for a in arguments]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(kernel)(*arguments)


def in_parts(level, planes, x, padded):
    """The parts of a run, (planes, padded), and the largest bit pattern found."""
    guarded = Guarded()
    source = guarded.array(x)
    made = guarded.array(np.full((planes, padded), 0x7FC0, np.uint16))
    kernel = addresses(level)[f"narrow_{NAMES[planes]}"]
    largest = call(kernel, source.ctypes.data, len(x), made.ctypes.data, 2 * padded, padded)
    return made.view(ml_dtypes.bfloat16).astype(np.float64), largest


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("planes", [2, 3])
@examples(40)
@given(n=st.integers(0, 130), beyond=st.integers(0, 40), seed=st.integers(0, 99))
def test_parts_add_up_to_each_number(level, planes, n, beyond, seed):
    rng = np.random.default_rng(seed)
    # Parts of smaller numbers are below what float32 holds in full.
    bits = rng.integers(60 << 23, 254 << 23, n, dtype=np.uint32)
    # Halves and carries into the exponent.
    bits[::3] = bits[::3] & 0xFFFF0000 | rng.choice([0x7FFF, 0x8000, 0x8001, 0xFFFF], n)[::3]
    x = (bits | rng.integers(0, 2, n, dtype=np.uint32) << 31).view(np.float32)
    parts, largest = in_parts(level, planes, x, n + beyond)
    left = np.abs(parts.sum(0)[:n] - x.astype(np.float64))
    assert (left <= LEFT[planes] * np.abs(x)).all()
    assert not parts[:, n:].any()
    assert largest == max([0, *np.abs(x).view(np.uint32).tolist()])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("place", [0, 17, 31, 40])
@pytest.mark.parametrize("bits", [0x7F800000, 0x7FFFFFFF, 0xFF800001, 0x7F7F8000])
def test_numbers_without_finite_parts_are_told(level, place, bits):
    x = np.ones(41, np.float32)
    x.view(np.uint32)[place] = bits
    assert in_parts(level, 3, x, 64)[1] == bits & 0x7FFFFFFF


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("planes", [1, 2, 3])
@examples(30)
@given(
    rows=st.integers(1, 5),
    n=st.integers(1, 80),
    apart=st.integers(0, 20),
    beyond=st.integers(0, 40),
)
def test_rows_are_split_and_nothing_between_them_is_touched(level, planes, rows, n, apart, beyond):
    guarded, padded = Guarded(), n + beyond
    x = np.random.default_rng(n).standard_normal((rows, n + apart)).astype(np.float32)
    source = guarded.array(x.reshape(-1)[: x.size - apart])
    size = rows * (padded + apart) - apart
    made = guarded.array(np.full((planes, size), 0x7FC0, np.uint16))
    kernel = addresses(level)[f"narrow_{NAMES[planes]}_rows"]
    pitches = 4 * (n + apart), 2 * (padded + apart)
    to = made.ctypes.data, pitches[1], 2 * size, padded
    largest = call(kernel, source.ctypes.data, pitches[0], rows, n, *to)
    spread = np.full((planes, rows * (padded + apart)), 0x7FC0, np.uint16)
    spread[:, :size] = made
    spread = spread.reshape(planes, rows, padded + apart)
    assert (spread[:, :, padded:] == 0x7FC0).all()
    parts = spread[:, :, :padded].view(ml_dtypes.bfloat16).astype(np.float64)
    left = np.abs(parts.sum(0)[:, :n] - x[:, :n])
    assert (left <= {1: 2.0**-8, **LEFT}[planes] * np.abs(x[:, :n])).all()
    assert not parts[:, :, n:].any()
    assert largest == np.abs(x[:, :n]).max().view(np.uint32)


def first_parts(level, form, planes, x):
    """The first part of each of `NUMBERS`, by one of the kernels that split; one row of them."""
    kernel, source = addresses(level)[f"{form}_{NAMES[planes]}"], x.ctypes.data
    if form == "pack":  # tiles of 16 rows times 32, with their parts behind them
        tiles = np.zeros((2, planes, 16, 32), np.uint16)
        call(kernel, source, 4 * NUMBERS, 1, NUMBERS, tiles.ctypes.data)
        return tiles[:, 0, 0].reshape(-1)[:NUMBERS].view(ml_dtypes.bfloat16)
    made = np.zeros((planes, NUMBERS), np.uint16)
    target, apart = made.ctypes.data, 2 * NUMBERS
    if form == "narrow":
        call(kernel, source, NUMBERS, target, apart, NUMBERS)
    elif form == "interleave":
        pixels = np.ascontiguousarray(x.reshape(-1, 3).T)
        call(kernel, pixels.ctypes.data, pixels.strides[0], NUMBERS // 3, target, apart)
    else:
        factors, summands = np.ones(NUMBERS, np.float32), np.zeros(NUMBERS, np.float32)
        ends = factors.ctypes.data, summands.ctypes.data, -np.inf, np.inf
        call(kernel, source, NUMBERS, target, apart, NUMBERS, *ends)
    return made[0].view(ml_dtypes.bfloat16)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("planes", NAMES)
@pytest.mark.parametrize("form", ["narrow", "pack", "scale", "interleave"])
@pytest.mark.parametrize("place", [0, 17, 31, 40])
def test_nan_stays_nan_and_infinity_infinity(level, planes, form, place):
    for bits in NANS + INFINITIES:
        x = np.ones(NUMBERS, np.float32)
        x.view(np.uint32)[place] = bits
        parts = first_parts(level, form, planes, x).astype(np.float32)
        np.testing.assert_array_equal(parts, x)  # NaN is equal to NaN there
