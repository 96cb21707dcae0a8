"""Products of bytes and turned planes, on memory that ends where the tensors end."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from partita.lowering import Operand
from partita_cpu.gemm.tile_kernels import PREPARE, byte_kernels
from partita_cpu.jit.isa import available
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.kernels.int8.byte_tiles import CHUNK, FEW, TOGETHER, Kind, multiply_bytes
from partita_cpu.kernels.int8.product import Result, kernels_for, row_steps
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD, byte_panels
from partita_cpu.llvm.tiles.dot_int8 import PART, most_rows
from partita_cpu.llvm.tiles.dot_levels import END_BYTES, LANES
from partita_cpu.nhwc.transpose import transpose_planes

LEVELS = list(available())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 4, 5, 16, 17, 32, 33, 300])
@pytest.mark.parametrize(
    ("terms", "columns"), [(1, 1), (64, 64), (67, 130), (96, 40), (700, 63), (65, 16), (130, 96)]
)
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    ("plain", "in_registers"), [(False, False), (True, False), (True, True), (False, True)]
)
def test_products(level, rows, terms, columns, kind, plain, in_registers, guarded):
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
    elif in_registers:  # one for all
        zeros = rng.integers(-9, 9, 1).astype(np.int32)
    scale, factors = np.float32(0.5), rng.random(columns).astype(np.float32)
    dtype = {Kind.SUMS: np.int32, Kind.FLOATS: np.float32, Kind.LEVELS: np.int8}[kind]
    if kind is Kind.FLOATS:
        bias = rng.standard_normal(columns).astype(np.float32)
    else:
        bias = rng.integers(-50, 50, columns).astype(np.int32)
    y = guarded.array(np.full((rows, columns), 7, dtype))
    least = 0 if kind is Kind.FLOATS and rows % 2 else -128  # 0 is least of floats, too
    sizes = [terms, columns, width // QUAD, 0, 0, kind, least, 127, steps, plain, block]
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
            byte_kernels(level, step, in_registers and kind is Kind.LEVELS),
            table,
            tid,
            threads,
        )
    if kind is Kind.SUMS:
        np.testing.assert_array_equal(y, sums)
    elif kind is Kind.FLOATS:
        exact = sums * (scale * factors) + bias
        exact = exact if least else np.maximum(exact, 0)
        np.testing.assert_allclose(y, exact, rtol=1e-6, atol=1e-5)
    else:
        exact = (sums + bias).astype(np.float32) * (scale * factors)
        np.testing.assert_array_equal(y, np.clip(np.round(exact) + 3, -128, 127))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", [level for level in LEVELS if level.lanes == LANES])
@pytest.mark.parametrize("columns", [1, 15, 16, 24, 32, 33, 48, 63, 64])
@pytest.mark.parametrize("signed", [False, True])
def test_levels_end_in_registers_for_columns_that_exist(level, columns, signed, guarded):
    """All rows that kernels take, between rows of a wider result; sums that saturate too."""
    rng, known = np.random.default_rng(columns), addresses(level, "_byte_levels")
    runs, quads, pitch, distance, width = 2, 5, 70, 9, columns + 3
    low, zero, level_of_zero = (-128, 17, -3) if signed else (0, 200, 250)
    panel = rng.integers(-128, 128, (runs, quads, PANEL, QUAD)).astype(np.int8)
    end = guarded.array(np.zeros(END_BYTES, np.uint8))
    totals = guarded.array(panel.astype(np.int32).sum((0, 1, 3), dtype=np.int32)[:columns])
    bias = guarded.array(rng.integers(-999, 999, columns).astype(np.int32))
    factors = guarded.array(rng.uniform(-0.2, 0.2, columns).astype(np.float32))
    scale = np.float32(0.3)
    kinds = [ctypes.c_int64] * 6 + [ctypes.c_float] + [ctypes.c_int64] * 2
    places = (array.ctypes.data for array in (bias, factors))
    ctypes.CFUNCTYPE(None, *kinds)(known["prepare_end"])(
        end.ctypes.data, columns, totals.ctypes.data, zero, *places, scale, low, level_of_zero
    )
    part = "" if columns > PANEL - PART else f"{-(-columns // PART) * PART}_"
    most = most_rows(level, -(-columns // PART) * PART)
    for rows, started in itertools.product(range(1, most + 1), (False, True)):
        length = (rows - 1) * distance + (runs - 1) * pitch + quads * QUAD
        a = guarded.array(rng.integers(0, 256, length).astype(np.uint8))
        y = np.full((rows, width), 77, np.uint8)
        last = guarded.array(y.reshape(-1)[: rows * width - 3])
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 11)(known[f"dot_levels_{part}{rows}"])
        lines = a.ctypes.data, distance, runs, pitch
        starts = guarded.array(rng.integers(-(2**31), 2**31, rows).astype(np.int32))
        first = starts.ctypes.data if started else 0
        rest = panel.ctypes.data, quads, panel.ctypes.data, first, end.ctypes.data
        call(*lines, *rest, last.ctypes.data, width)
        y.reshape(-1)[: rows * width - 3] = last
        sums = np.zeros((rows, columns), np.int64)
        for row, run in itertools.product(range(rows), range(runs)):
            first = row * distance + run * pitch
            quad = a[first : first + quads * QUAD].reshape(quads, QUAD).astype(np.int64)
            sums[row] += np.einsum("qcf,qf->c", panel[run, :, :columns].astype(np.int64), quad)
        sums = sums - zero * totals + bias
        sums = (sums + started * starts[:, None].astype(np.int64)).astype(np.int32)
        exact = sums.astype(np.float32) * (scale * factors)
        found = y[:, :columns].view(np.int8 if signed else np.uint8)
        np.testing.assert_array_equal(
            found, np.clip(np.round(exact) + level_of_zero, low, low + 255)
        )
        assert (y[:, columns:] == 77).all()


def test_factors_beyond_whole_numbers_of_32_bits_end_in_memory():
    """Kernels that end in registers saturate no float that is larger than all int32."""

    def operand(*values):
        array = np.array(values, np.float32)
        return Operand(array.shape, array.dtype, const=array)

    def prepares(*factors):
        none = Operand((len(factors),), np.dtype(np.int32))
        result = Result(Kind.LEVELS, np.uint8, operand(0.5), operand(*factors), none, none)
        return kernels_for(LEVELS[-1], 64, result)[PREPARE] != 0

    wide = LEVELS[-1].lanes == LANES
    assert prepares(0.1, -1.9) == wide
    assert not any(map(prepares, (2.0, -2.0, np.inf, np.nan)))


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


@pytest.mark.parametrize("columns", [1, 64, 2000])
def test_vectors_of_packed_weights_span_no_two_cache_lines(columns):
    weights = np.zeros((640, columns), np.int8)
    assert byte_panels(weights).ctypes.data % 64 == 0
