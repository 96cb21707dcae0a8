"""Products with weights quantized in blocks, on memory that ends where the tensors end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita_cpu.gemm.packed_lhs import MatrixSizes, laid_size, lay_rows, thread_bytes
from partita_cpu.gemm.product_records import Epilogue
from partita_cpu.gemm.tile_kernels import (
    Arithmetic,
    block_kernels,
    laid_kernels,
    pair_kernels,
    unpack_kernel,
)
from partita_cpu.jit import isa
from partita_cpu.kernels.quantized_weights.pair_products import UNPACKED_FLOATS, multiply_pairs
from partita_cpu.kernels.quantized_weights.panels import pack_weights
from partita_cpu.kernels.quantized_weights.row_products import (
    BlockArrays,
    RowSizes,
    multiply_blocks,
    quantize_rows,
    row_bytes,
    scratch_floats,
)
from partita_cpu.kernels.quantized_weights.tile_products import (
    UnpackContext,
    multiply_unpacked,
    unpacked_size,
    unpacked_table,
)
from partita_cpu.llvm.levels import AMX, AVX2
from partita_cpu.llvm.tiles import dot_pairs
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, VARIANTS, Zeros
from partita_cpu.machine_model import MachineModel

from . import emulated
from .conftest import TOLERANCE, Guarded

LEVELS = list(isa.available())
INF = float("inf")


class Problem:
    """A product, its packed operands on guarded memory, and its result in float64."""

    def __init__(self, guarded, seed, variant, rows, terms, columns, size):
        rng = np.random.default_rng(seed)
        blocks, bits = -(-terms // size), variant.bits
        panels = -(-columns // COLUMNS)
        self.variant, self.guarded = variant, guarded
        self.x = rng.standard_normal((rows, terms)).astype(np.float32)
        self.bias = rng.standard_normal(columns).astype(np.float32)
        packed = rng.integers(0, 256, (columns, blocks * size * bits // 8)).astype(np.uint8)
        kind = np.float16 if variant.halves else np.float32
        scales = rng.uniform(0.01, 0.1, (columns, blocks)).astype(kind)
        scales, zeros = scales.astype(np.float32), np.full((columns, blocks), 5, np.float32)
        terms_of_zeros = zeros * scales
        if variant.zeros is Zeros.BYTES:
            zeros = rng.integers(0, 1 << bits, zeros.shape).astype(np.float32)
            terms_of_zeros = zeros * scales
        elif variant.zeros is not Zeros.EQUAL:
            wide = np.float16 if variant.zeros is Zeros.HALVES else np.float32
            terms_of_zeros = rng.uniform(0, 1, zeros.shape).astype(wide)
            zeros = terms_of_zeros
        weights = np.zeros(panels * COLUMNS * packed.shape[1], np.uint8)
        flat = packed.reshape(-1)
        for tid in range(2):
            pack_weights(flat, weights, columns, packed.shape[1], bits, tid, 2)
        stored = {Zeros.BYTES: np.uint8, Zeros.HALVES: np.float16}.get(variant.zeros, np.float32)
        self.w = guarded.array(weights)
        self.scales = beside(guarded, scales, kind)
        self.zeros = beside(guarded, zeros, stored)
        if variant.zeros is Zeros.EQUAL:
            self.zeros = guarded.array(np.zeros(1, np.uint8))
        levels = packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1)
        levels = levels.reshape(columns, blocks, size).astype(np.float64)
        real = levels * scales.astype(np.float64)[..., None] - terms_of_zeros[..., None]
        matrix = real.reshape(columns, -1)[:, :terms].T
        self.expected = self.x.astype(np.float64) @ matrix + self.bias
        of_panels = size, bits, variant.scale_bytes, int(variant.zeros), 5
        self.sizes = RowSizes(rows, terms, columns, *of_panels, 24, 1)

    def check(self, y, tolerance):
        assert np.abs(y - self.expected).max() <= tolerance * np.abs(self.expected).max()


def beside(guarded, numbers, kind):
    """Numbers of blocks in the order of panels, as bytes."""
    columns, blocks = numbers.shape
    padded = np.zeros((-(-columns // COLUMNS) * COLUMNS, blocks), kind)
    padded[:columns] = numbers
    panels = padded.reshape(-1, COLUMNS, blocks).swapaxes(1, 2)
    return guarded.array(np.ascontiguousarray(panels).reshape(-1).view(np.uint8))


def run_rows(problem, level, threads, shares, pairs=False):
    guarded, sizes = problem.guarded, problem.sizes._replace(shares=shares)
    x = guarded.array(problem.x).reshape(-1)
    quantized = x
    if level.native:
        quantized = guarded.array(np.full(sizes.rows * row_bytes(*sizes[1:4:2]), 255, np.uint8))
        layout = sizes.rows, sizes.terms, sizes.size, sizes.zeros, sizes.zero
        for tid in range(threads):
            quantize_rows(x, quantized, *layout, tid, threads)
    y = guarded.array(np.full((sizes.rows, sizes.columns), 7, np.float32))
    bias = guarded.array(problem.bias)
    arrays = BlockArrays(problem.w, problem.scales, problem.zeros, bias, y.reshape(-1))
    each = scratch_floats(sizes.size) + pairs * UNPACKED_FLOATS
    floats = guarded.array(np.full(threads * each, np.nan, np.float32))
    multiply, kernels = multiply_blocks, block_kernels(level, problem.variant)
    if pairs:
        has_terms = problem.variant.zeros in (Zeros.HALVES, Zeros.FLOATS)
        multiply, kernels = multiply_pairs, pair_kernels(level, has_terms)
    for tid in range(threads):
        multiply(x, quantized, arrays, kernels, sizes, floats, tid, threads)
    return y


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("variant", VARIANTS, ids=[variant.name for variant in VARIANTS])
@examples(8)
@given(
    rows=st.integers(1, 40),
    terms=st.integers(1, 300),
    columns=st.integers(1, 70),
    size=st.sampled_from([16, 32, 64, 128, 256]),
    threads=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_rows(level, variant, rows, terms, columns, size, threads, seed, data):
    guarded = Guarded()
    problem = Problem(guarded, seed, variant, rows, terms, columns, size)
    shares = data.draw(st.integers(1, threads))
    problem.check(run_rows(problem, level, threads, shares), 1e-4)
    guarded.release()


PAIRED = [level for level in LEVELS if dot_pairs.row_counts(level)]


@pytest.mark.parametrize("level", PAIRED)
@pytest.mark.parametrize("variant", VARIANTS, ids=[variant.name for variant in VARIANTS])
@examples(8)
@given(
    rows=st.integers(1, 40),
    terms=st.integers(1, 1300),
    columns=st.integers(1, 70),
    size=st.sampled_from([16, 32, 64, 128, 256]),
    threads=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_rows_by_unpacked_weights(level, variant, rows, terms, columns, size, threads, seed, data):
    guarded = Guarded()
    problem = Problem(guarded, seed, variant, rows, terms, columns, size)
    shares = data.draw(st.integers(1, threads))
    problem.check(run_rows(problem, level, threads, shares, pairs=True), 1e-4)
    guarded.release()


@pytest.mark.parametrize("level", PAIRED)
def test_unpacked_weights_leave_rows_that_are_not_finite_exact(level, guarded):
    problem = Problem(guarded, 0, VARIANTS[0], 40, 600, 20, 32)
    plain = run_rows(problem, level, 2, 1, pairs=True)
    problem.x[17, 5] = INF
    y = run_rows(problem, level, 2, 1, pairs=True)
    assert not np.isfinite(y[17]).any()
    np.testing.assert_array_equal(np.delete(y, 17, 0), np.delete(plain, 17, 0))


def run_tiles(problem, arithmetic, threads):
    guarded, sizes, planes = problem.guarded, problem.sizes, arithmetic.planes
    kernels = laid_kernels(AMX, arithmetic)
    x = guarded.array(problem.x).reshape(-1)
    tiles = guarded.array(np.full(laid_size(sizes.rows, sizes.terms, planes), -1, np.int16))
    tiles = tiles.view(np.uint16)
    for tid in range(threads):
        lay_rows(x, tiles, kernels, sizes.rows, sizes.terms, planes, tid, threads)
    product = MatrixSizes(sizes.rows, sizes.terms, sizes.columns, planes)
    table = unpacked_table(product, MachineModel(AMX, threads), threads)
    context = UnpackContext(
        np.full(threads * thread_bytes(table), 255, np.uint8),
        np.full(threads * unpacked_size(table), 0xFFFF, np.uint16),
        np.full(threads * scratch_floats(sizes.size), np.nan, np.float32),
        kernels,
        unpack_kernel(AMX, problem.variant, planes),
        table,
    )
    bias = np.zeros(-(-sizes.columns // 32) * 32, np.float32)
    bias[: sizes.columns] = problem.bias
    y = guarded.array(np.full((sizes.rows, sizes.columns), 7, np.float32))
    of_weights = problem.w, problem.scales, problem.zeros, guarded.array(bias)
    nothing = Epilogue(0, -INF, INF, 0, 0, 0.0, 0.0)
    for tid in range(threads):
        arrays = BlockArrays(*of_weights, y.reshape(-1))
        multiply_unpacked(x, tiles, arrays, context, nothing, sizes, tid, threads)
    return y


@pytest.mark.skipif(AVX2 not in isa.available(), reason="emulates AMX by AVX2 where it lacks")
@pytest.mark.parametrize("arithmetic", [Arithmetic.BF16, Arithmetic.BF16X3])
@pytest.mark.parametrize("variant", VARIANTS[::2], ids=[variant.name for variant in VARIANTS[::2]])
def test_tiles(arithmetic, variant, guarded, monkeypatch):
    emulated.install(monkeypatch, AMX)
    for rows, terms, columns, size in ((70, 90, 37, 32), (33, 210, 100, 16), (40, 500, 20, 256)):
        problem = Problem(guarded, rows, variant, rows, terms, columns, size)
        problem.check(run_tiles(problem, arithmetic, 2), TOLERANCE[arithmetic] + 1e-5)


def test_tiles_leave_rows_that_are_not_finite_exact(guarded, monkeypatch):
    if AVX2 not in isa.available():
        pytest.skip("emulates AMX by AVX2 where it lacks")
    emulated.install(monkeypatch, AMX)
    problem = Problem(guarded, 0, VARIANTS[0], 40, 64, 20, 32)
    plain = run_tiles(problem, Arithmetic.BF16X3, 1)
    problem.x[17, 5] = INF
    y = run_tiles(problem, Arithmetic.BF16X3, 1)
    assert not np.isfinite(y[17]).any()
    others = np.arange(40) // 16 != 1
    np.testing.assert_array_equal(y[others], plain[others])
    np.testing.assert_allclose(np.delete(y, 17, 0), np.delete(plain, 17, 0), atol=1e-3)
