"""Register tiles against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import NumbaError
from numpy.lib.stride_tricks import as_strided

from partita_cpu.jit.deferred_numba import compiler
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.linalg import register_tiles
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD, byte_panels, float_panels


def compiled(tile):
    """A tile as a function of arrays, with offsets that are not 0."""

    @compiler().njit(_nrt=False)
    def run(a, w, c, a_step, c_step, terms):
        tile(a, 3, a_step, w, 0, c, 5, c_step, terms)

    return run


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, register_tiles.ROWS])
@pytest.mark.parametrize("terms", [0, 1, 77])
def test_floats(dtype, rows, terms):
    rng = np.random.default_rng(0)
    a = rng.standard_normal(3 + rows * (terms + 2)).astype(dtype)
    w = rng.standard_normal((terms, PANEL)).astype(dtype)
    c = rng.standard_normal(5 + rows * (PANEL + 9)).astype(dtype)
    left = as_strided(a[3:], (rows, terms), ((terms + 2) * a.itemsize, a.itemsize))
    expected = c.copy()
    block = as_strided(expected[5:], (rows, PANEL), ((PANEL + 9) * c.itemsize, c.itemsize))
    block += left @ w
    tile = register_tiles.multiply_row if rows == 1 else register_tiles.multiply_rows
    compiled(tile)(a, float_panels(w), c, terms + 2, PANEL + 9, terms)
    np.testing.assert_allclose(c, expected, rtol=1e-5 if dtype is np.float32 else 1e-12, atol=1e-5)


@pytest.mark.parametrize("rows", [1, register_tiles.ROWS])
def test_bytes(rows):
    rng = np.random.default_rng(1)
    terms, step = 36, 40
    a = rng.integers(0, 256, 3 + rows * step).astype(np.uint8)
    w = rng.integers(-128, 128, (terms, PANEL)).astype(np.int8)
    c = np.zeros(5 + rows * PANEL, np.int32)
    left = as_strided(a[3:], (rows, terms), (step, 1)).astype(np.int32)
    compiled(register_tiles.make_tile(rows, register_tiles.dot, True))(
        a, byte_panels(w), c, step, PANEL, terms // QUAD
    )
    np.testing.assert_array_equal(c[5:].reshape(rows, PANEL), left @ w.astype(np.int32))
    np.testing.assert_array_equal(c[:5], 0)


def test_the_largest_bytes_do_not_saturate():
    a = np.full(3 + 8, 255, np.uint8)
    w = np.full((8, PANEL), -128, np.int8)
    c = np.zeros(5 + PANEL, np.int32)
    compiled(register_tiles.multiply_byte_row)(a, byte_panels(w), c, 0, 0, 2)
    np.testing.assert_array_equal(c[5:], 8 * 255 * -128)


@pytest.mark.parametrize("shape", [(3, 64), (5, 70), (4, 1), (1, 130)])
def test_panels(shape):
    matrix = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    panels = float_panels(matrix).reshape(-1, shape[0], PANEL)
    full = panels.transpose(1, 0, 2).reshape(shape[0], -1)
    np.testing.assert_array_equal(full[:, : shape[1]], matrix)
    assert not full[:, shape[1] :].any()
    levels = byte_panels(matrix.astype(np.int8)).reshape(len(panels), -1, PANEL, QUAD)
    full = levels.transpose(1, 3, 0, 2).reshape(-1, len(panels) * PANEL)
    np.testing.assert_array_equal(full[: shape[0], : shape[1]], matrix.astype(np.int8))
    assert full.sum() == matrix.astype(np.int8).sum()


def test_a_loop_may_not_allocate():
    @loop
    def allocating(x):
        return np.empty(x).sum()

    with pytest.raises(NumbaError, match=r"NRT required|Only accept returning of array"):
        allocating(3)
