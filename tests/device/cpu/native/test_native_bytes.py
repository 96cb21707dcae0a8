"""Products of bytes and turned planes, on memory that ends where the tensors end."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from partita_cpu.gemm.tile_kernels import byte_kernels
from partita_cpu.jit.isa import available
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.kernels.int8.byte_tiles import CHUNK, FEW, TOGETHER, Kind, multiply_bytes
from partita_cpu.kernels.int8.product import row_steps
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD, byte_panels
from partita_cpu.llvm.tiles.dot_int8 import PART, most_rows
from partita_cpu.nhwc.transpose import transpose_planes

LEVELS = list(available())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 4, 5, 16, 17, 32, 33, 300])
@pytest.mark.parametrize(
    ("terms", "columns"), [(1, 1), (64, 64), (67, 130), (96, 40), (700, 63), (65, 16), (130, 96)]
)
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("plain", [False, True])
def test_products(level, rows, terms, columns, kind, plain, guarded):
    rng = np.random.default_rng(rows + terms)
    steps, step = row_steps(terms)
    block = int(rng.integers(1, 8))
    width = steps * step if level.tiles else -(-terms // QUAD) * QUAD
    # Rows that fill tiles lie as they are; others are packed with room behind them.
    there = not level.tiles or rows >= CHUNK or rows == CHUNK // 2 or rows <= FEW
    height = rows if there else CHUNK
    x = np.zeros((height, width), np.uint8)
    x[:rows, :terms] = rng.integers(0, 256, (rows, terms))
    w = rng.integers(-128, 128, (terms, columns)).astype(np.int8)
    row_zero, zeros = 128, rng.integers(-9, 9, columns).astype(np.int32)
    if plain:
        zeros[:] = 0
    scale, factors = np.float32(0.5), rng.random(columns).astype(np.float32)
    dtype = {Kind.SUMS: np.int32, Kind.FLOATS: np.float32, Kind.LEVELS: np.int8}[kind]
    if kind is Kind.FLOATS:
        bias = rng.standard_normal(columns).astype(np.float32)
    else:
        bias = rng.integers(-50, 50, columns).astype(np.int32)
    y = guarded.array(np.full((rows, columns), 7, dtype))
    sizes = [terms, columns, width // QUAD, 0, 0, kind, -128, 127, steps, plain, block]
    table = np.array(sizes, np.int64)
    threads = 2
    sums = (x[:rows, :terms].astype(np.int64) - row_zero) @ (w.astype(np.int64) - zeros)
    for tid in range(threads):
        multiply_bytes(
            guarded.array(x).reshape(-1),
            guarded.array(byte_panels(w, width)),
            guarded.array(x[:rows].sum(1, dtype=np.int32)),
            guarded.array(w.sum(0, dtype=np.int32)),
            np.array([row_zero], np.int32),
            guarded.array(zeros),
            np.array([scale]),
            guarded.array(factors),
            guarded.array(bias),
            np.array([3], np.int32),
            y.reshape(-1),
            np.full(threads * TOGETHER * CHUNK * PANEL, -1, np.int32),
            byte_kernels(level, step),
            table,
            tid,
            threads,
        )
    if kind is Kind.SUMS:
        np.testing.assert_array_equal(y, sums)
    elif kind is Kind.FLOATS:
        np.testing.assert_allclose(y, sums * (scale * factors) + bias, rtol=1e-6, atol=1e-5)
    else:
        exact = (sums + bias).astype(np.float32) * (scale * factors)
        np.testing.assert_array_equal(y, np.clip(np.round(exact) + 3, -128, 127))


@pytest.mark.parametrize("level", [level for level in LEVELS if level.native])
@pytest.mark.parametrize("columns", range(PART, PANEL, PART))
def test_columns_behind_a_part_of_a_panel_are_not_computed(level, columns, guarded):
    """Kernels without tiles, of as many rows as fit; runs of rows lie apart."""
    rng, known = np.random.default_rng(columns), addresses(level, "_bytes")
    runs, quads, pitch = 3, 5, 70
    panel = rng.integers(-128, 128, (runs, quads, PANEL, QUAD)).astype(np.int8)
    for rows in range(1, most_rows(level, columns) + 1):
        distance = 9
        a = guarded.array(
            rng.integers(0, 256, (rows - 1) * distance + (runs - 1) * pitch + quads * QUAD).astype(
                np.uint8
            )
        )
        tile = np.full((rows, PANEL), 7, np.int32)
        kernel = known[f"dot_bytes_{columns}_{rows}"]
        places = (panel.ctypes.data, quads, tile.ctypes.data, panel.ctypes.data)
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 8)(kernel)
        call(a.ctypes.data, distance, runs, pitch, *places)
        sums = np.zeros((rows, PANEL), np.int64)
        for row in range(rows):
            for run in range(runs):
                first = row * distance + run * pitch
                quad = a[first : first + quads * QUAD].reshape(quads, QUAD).astype(np.int64)
                sums[row] += np.einsum("qcf,qf->c", panel[run].astype(np.int64), quad)
        np.testing.assert_array_equal(tile[:, :columns], sums[:, :columns])
        assert (tile[:, columns:] == 7).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", [level for level in LEVELS if level.native])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32, np.int32])
@pytest.mark.parametrize(
    "shape", [(1, 16, 16), (2, 17, 35), (3, 16, 31), (1, 40, 64), (2, 20, 196), (2, 195, 20)]
)
@pytest.mark.parametrize("threads", [1, 3, 7])
def test_turned_planes(level, dtype, shape, threads, guarded):
    """Threads share columns, or rows where there are few columns."""
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    planes, rows, columns = shape
    y = guarded.array(np.zeros((planes, columns, rows), dtype))
    kernel = addresses(level)[f"transpose_{8 * x.itemsize}"]
    for tid in range(threads):
        source = guarded.array(x, at_end=tid != 0).reshape(-1)
        transpose_planes(source, y.reshape(-1), rows, columns, kernel, tid, threads)
    np.testing.assert_array_equal(y, x.swapaxes(1, 2))
