"""The kernels of attention over a cache, tile by tile, beside float64."""

import ctypes
import itertools

import numpy as np
import pytest
from cpu_levels import float_levels
from ml_dtypes import bfloat16

from partita_cpu.gemm.arithmetic import tile_columns
from partita_cpu.gemm.attention_kernels import SOFTMAX, attention_kernels
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE
from partita_cpu.llvm.attention.attend import STATES, TILE_ROWS, TOGETHER, in_pairs, state_rows

LEVELS = float_levels()[1:]
PAIRED = [level for level in LEVELS if in_pairs(level)]
TILED = [level for level in LEVELS if level.tiles]


def call(address, *args):
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(int(address))(*args)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [1, 7, 64])
@pytest.mark.parametrize("going_on", [False, True])
def test_products(level, depth, going_on, guarded):
    rng, wide, blocks = np.random.default_rng(0), tile_columns(level), 3
    for rows in range(1, level.rows + 1):
        a = guarded.array(rng.standard_normal((rows, depth)).astype(np.float32))
        b = guarded.array(rng.standard_normal((blocks, depth, wide)).astype(np.float32))
        y = guarded.array(rng.standard_normal((rows, blocks * wide)).astype(np.float32))
        shares = guarded.array(rng.random(rows).astype(np.float32))
        wanted = a.astype(np.float64) @ b.astype(np.float64).swapaxes(0, 1).reshape(depth, -1)
        if going_on:
            wanted += shares[:, None].astype(np.float64) * y
        packed = b.ctypes.data, b[0].nbytes, blocks
        begin = shares.ctypes.data if going_on else 0
        left = a.ctypes.data, a[0].nbytes, depth
        to = y.ctypes.data, y[0].nbytes, begin, 0, 0
        call(attention_kernels(level)[rows], *left, *packed, *to)
        assert np.abs(y - wanted).max() <= 1e-6 * (np.sqrt(depth) + 4)


@pytest.mark.parametrize("level", PAIRED)
@pytest.mark.parametrize("depth", [1, 7, 64])
def test_products_of_pairs(level, depth, guarded):
    """As those of floats, of factors that are bfloat16; y begins with what it had."""
    rng, wide, blocks = np.random.default_rng(0), tile_columns(level), 3
    for rows in range(1, level.rows + 1):
        factors = rng.standard_normal((rows, 2 * depth)).astype(bfloat16)
        others = rng.standard_normal((blocks, depth, wide, 2)).astype(bfloat16)
        a, b = guarded.array(factors.view(np.uint16)), guarded.array(others.view(np.uint16))
        y = guarded.array(rng.standard_normal((rows, blocks * wide)).astype(np.float32))
        shares = guarded.array(rng.random(rows).astype(np.float32))
        flat = others.astype(np.float64).transpose(1, 3, 0, 2).reshape(2 * depth, -1)
        wanted = factors.astype(np.float64) @ flat + shares[:, None].astype(np.float64) * y
        left = a.ctypes.data, a[0].nbytes, depth, b.ctypes.data, b[0].nbytes, blocks
        to = y.ctypes.data, y[0].nbytes, shares.ctypes.data, 0, 0
        call(attention_kernels(level, 1)[rows], *left, *to)
        assert np.abs(y - wanted).max() <= 1e-6 * (np.sqrt(2 * depth) + 4)


@pytest.mark.parametrize("level", TILED)
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("going_on", [False, True])
def test_products_by_tiles(level, planes, steps, going_on, guarded):
    """Of sums of bfloat16, all but the product of second parts; whole halves are written."""
    rng, depth, blocks = np.random.default_rng(0), 16 * steps, 3
    kernels = attention_kernels(level, planes)
    call(kernels[CONFIGURE], kernels[CONFIG])
    for rows in (1, 16, 17, 32):
        there = -(-rows // 16) * 16
        size = np.array([1, 2**-9]).astype(bfloat16)[:planes]
        a = rng.standard_normal((there, planes, 2 * depth)).astype(bfloat16) * size[:, None]
        b = rng.standard_normal((blocks, planes, depth, 32, 2)).astype(bfloat16)
        b *= size[:, None, None, None]
        y = guarded.array(rng.standard_normal((there, blocks * 32)).astype(np.float32))
        shares = guarded.array(rng.random(there).astype(np.float32))
        left, right = guarded.array(a.view(np.uint16)), guarded.array(b.view(np.uint16))
        wanted = shares[:, None].astype(np.float64) * y if going_on else 0
        flat = b.astype(np.float64).transpose(1, 2, 4, 0, 3).reshape(planes, 2 * depth, -1)
        for of_a, of_b in itertools.product(range(planes), repeat=2):
            if of_a + of_b < planes:
                wanted = wanted + a[:, of_a].astype(np.float64) @ flat[of_b]
        begin = shares.ctypes.data if going_on else 0
        given = left.ctypes.data, left[0].nbytes, depth, right.ctypes.data, right[0].nbytes, blocks
        parts = left[0, 0].nbytes, right[0, 0].nbytes
        call(kernels[rows], *given, y.ctypes.data, y[0].nbytes, begin, *parts)
        assert np.abs(y - wanted).max() <= 1e-6 * (np.sqrt(2 * depth) + 4)
    call(kernels[RELEASE])


@pytest.mark.parametrize("level", TILED)
def test_powers_become_sums_of_two_bfloat16(level, guarded):
    rng, rows, columns = np.random.default_rng(2), TILE_ROWS, 75
    room = 96
    given = rng.standard_normal((rows, room)).astype(np.float32)
    given = np.concatenate([given, np.full_like(given, np.nan)])
    state = guarded.array(np.full((STATES, rows), -np.inf, np.float32))
    state[1:] = 0
    seen = guarded.array(np.repeat([[3], [60]], rows, axis=1).astype(np.int32))
    scores = guarded.array(given)
    places = scores.ctypes.data, scores[0].nbytes, rows, columns
    call(attention_kernels(level, 2)[SOFTMAX], *places, seen.ctypes.data, state.ctypes.data)
    parts = scores[rows:].view(np.uint16).view(bfloat16).reshape(rows, 2, room)
    wanted = np.zeros((rows, room))
    exact = given[:rows, 3:63].astype(np.float64)
    wanted[:, 3:63] = np.exp(exact - exact.max(axis=1, keepdims=True))
    np.testing.assert_allclose(parts.astype(np.float64).sum(axis=1), wanted, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(state[1], wanted.sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize("level", [*PAIRED, *TILED])
@pytest.mark.parametrize("first", [0, 3])
def test_powers_become_bfloat16_in_place(level, first, guarded):
    """They are rounded to half a unit, and before to a few thousandths of one; sums are not."""
    rng, columns, unit = np.random.default_rng(2), 75, TOGETHER * level.lanes
    rows = TILE_ROWS if level.tiles else level.rows
    room, apart = -(-columns // unit) * unit, state_rows(rows, level.lanes)
    given = rng.standard_normal((rows, room)).astype(np.float32)
    given[:, 7], given[:, 40] = -np.inf, -200
    state = guarded.array(np.full((STATES, apart), -np.inf, np.float32))
    state[1:] = 0
    seen = guarded.array(np.zeros((2, apart), np.int32))
    seen[0, :rows], seen[1, :rows] = first, 70
    scores = guarded.array(given)
    places = scores.ctypes.data, scores[0].nbytes, rows, columns
    kernel = attention_kernels(level, 1)[SOFTMAX]
    call(kernel, *places, seen.ctypes.data, state.ctypes.data)
    made = scores.view(np.uint16)[:, :room].view(bfloat16).astype(np.float64)
    exact, wanted = given[:, first : first + 70].astype(np.float64), np.zeros((rows, room))
    wanted[:, first : first + 70] = np.exp(exact - exact.max(axis=1, keepdims=True))
    np.testing.assert_allclose(made, wanted, rtol=2**-8 + 1e-4, atol=1e-37)
    np.testing.assert_allclose(state[1, :rows], wanted.sum(axis=1), rtol=1e-4)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [None, np.nan, -np.nan, np.inf, -np.inf])
def test_the_softmax_goes_on_from_block_to_block(level, number, guarded):
    rng, rows, lanes = np.random.default_rng(1), level.rows, level.lanes
    columns, unit = 75, TOGETHER * lanes
    room, apart = -(-columns // unit) * unit, state_rows(rows, lanes)
    state = guarded.array(np.full((STATES, apart), -np.inf, np.float32))
    state[1:] = 0
    made = np.zeros((rows, 2, columns))
    given = np.full((rows, 2, columns), -np.inf, np.float32)
    for block in range(2):
        seen = guarded.array(np.zeros((2, apart), np.int32))
        scores = guarded.array(np.full((rows, room), np.nan, np.float32))
        for row in range(rows):
            low = 3 * row if block else 0
            high = max(low, 5 + row if block == 0 else columns - row)
            high = low if row == 1 and block == 0 else high  # sees no key yet
            seen[:, row] = low, high - low
            scores[row, low:high] = 30 * rng.standard_normal(high - low)
            if number is not None and row == 2:
                scores[row, low : low + 2] = number
            given[row, block, low:high] = scores[row, low:high]
        places = scores.ctypes.data, scores[0].nbytes, rows, columns
        call(attention_kernels(level)[SOFTMAX], *places, seen.ctypes.data, state.ctypes.data)
        made *= state[2, :rows, None, None]
        made[:, block] = scores[:, :columns]
    whole = given.astype(np.float64)
    with np.errstate(invalid="ignore"):
        powers = np.exp(whole - whole.max((1, 2), keepdims=True))
    spoilt = number is not None and number != -np.inf
    for row in range(rows):
        if spoilt and row == 2:
            assert np.isnan(state[1, row])
            continue
        np.testing.assert_allclose(made[row], powers[row], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(state[1, row], powers[row].sum(), rtol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_queries_without_keys_are_zero(level, guarded):
    apart = state_rows(level.rows, level.lanes)
    state = guarded.array(np.full((STATES, apart), -np.inf, np.float32))
    state[1:] = 0
    seen = guarded.array(np.zeros((2, apart), np.int32))
    seen[1, 0] = 5  # all of whose scores are minus infinity
    scores = guarded.array(np.full((level.rows, TOGETHER * level.lanes), -np.inf, np.float32))
    places = scores.ctypes.data, scores[0].nbytes, level.rows, 5
    call(attention_kernels(level)[SOFTMAX], *places, seen.ctypes.data, state.ctypes.data)
    assert not scores.any() and not state[1].any()
