"""Products with weights quantized in blocks, on memory that ends where the tensors end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.packed_lhs.packed_lhs_table import MatrixSizes, packed_lhs_size, thread_bytes
from partita_cpu.gemm.packed_lhs.product import pack_lhs
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_records import Epilogue
from partita_cpu.gemm.tile_kernels import (
    block_kernels,
    int8_rows_kernel,
    int16_rows_kernel,
    packed_lhs_kernels,
    pair_kernels,
    quad_kernels,
    unpack_kernel,
)
from partita_cpu.jit import isa
from partita_cpu.kernels.quantized_weights.matmul_nbits import unpacked_sides
from partita_cpu.kernels.quantized_weights.panels import BlockSizes, pack_weights
from partita_cpu.kernels.quantized_weights.row_products import (
    BlockArrays,
    RowSizes,
    multiply_blocks,
    scratch_floats,
)
from partita_cpu.kernels.quantized_weights.rows_int8 import GroupSizes, quantize_groups
from partita_cpu.kernels.quantized_weights.rows_int16 import (
    RowLayout,
    quantize_rows,
    row_bytes,
)
from partita_cpu.kernels.quantized_weights.scale_levels import widen_levels
from partita_cpu.kernels.quantized_weights.six_bits import pack_sixes
from partita_cpu.kernels.quantized_weights.tile_products import (
    UnpackContext,
    multiply_unpacked,
    unpacked_size,
    unpacked_table,
)
from partita_cpu.kernels.quantized_weights.unpacked_products import (
    Unpacked,
    multiply_unpacked_rows,
    thread_floats,
)
from partita_cpu.kernels.quantized_weights.unpacked_products import row_bytes as unpacked_row_bytes
from partita_cpu.llvm.levels import AMX, AVX2, AVX512, AVX512_BF16
from partita_cpu.llvm.tiles.dot_blocks import (
    COLUMNS,
    GROUP_TERMS,
    LEVEL_VARIANTS,
    VARIANTS,
    Zeros,
    scales_by_exponents,
)
from partita_cpu.llvm.tiles.dot_unpacked import Factors, longest_unit, row_counts, width
from partita_cpu.machine_model import MachineModel

from .. import emulated
from ..conftest import TOLERANCE, Guarded

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
        stored_bits = 8 if bits == 6 else bits
        packed = rng.integers(0, 256, (columns, blocks * size * stored_bits // 8)).astype(np.uint8)
        if bits == 6:
            packed %= 64
        kind = np.float16 if variant.halves else np.float32
        scales = rng.uniform(0.01, 0.1, (columns, blocks)).astype(kind)
        scales, zeros = scales.astype(np.float32), np.full((columns, blocks), 5, np.float32)
        terms_of_zeros = zeros * scales
        if variant.levels:
            self.scales, scales = levels_beside(guarded, rng, (columns, blocks), size)
            terms_of_zeros = zeros * scales
        if variant.zeros is Zeros.LEVELS:
            self.zeros, terms_of_zeros = levels_beside(guarded, rng, (columns, blocks), size)
        elif variant.zeros is Zeros.BYTES:
            zeros = rng.integers(0, 1 << bits, zeros.shape).astype(np.float32)
            terms_of_zeros = zeros * scales
        elif variant.zeros is not Zeros.EQUAL:
            wide = np.float16 if variant.zeros is Zeros.HALVES else np.float32
            terms_of_zeros = rng.uniform(0, 1, zeros.shape).astype(wide)
            zeros = terms_of_zeros
        weights = np.zeros(panels * COLUMNS * blocks * size * bits // 8, np.uint8)
        flat = packed.reshape(-1)
        for tid in range(2):
            if bits == 6:
                pack_sixes(flat + np.uint8(9), weights, columns, packed.shape[1], 9, tid, 2)
            else:
                pack_weights(flat, weights, columns, packed.shape[1], bits, tid, 2)
        stored = {Zeros.BYTES: np.uint8, Zeros.HALVES: np.float16}.get(variant.zeros, np.float32)
        self.w = guarded.array(weights)
        if not variant.levels:
            self.scales = beside(guarded, scales, kind)
            self.zeros = beside(guarded, zeros, stored)
        if variant.zeros is Zeros.EQUAL:
            self.zeros = guarded.array(np.zeros(1, np.uint8))
        levels = packed if stored_bits == 8 else np.stack([packed & 15, packed >> 4], -1)
        levels = levels.reshape(columns, blocks, size).astype(np.float64)
        real = levels * scales.astype(np.float64)[..., None] - terms_of_zeros[..., None]
        reach = levels * scales.astype(np.float64)[..., None] + np.abs(terms_of_zeros)[..., None]
        self.matrix, self.reach = (each.reshape(columns, -1)[:, :terms].T for each in (real, reach))
        self.expected = self.exact(self.x)
        of_panels = size, bits, variant.scale_bytes, int(variant.zeros), 5
        self.sizes = RowSizes(rows, terms, columns, *of_panels, 24, 1)

    def exact(self, x):
        return x.astype(np.float64) @ self.matrix + self.bias

    def check(self, y, tolerance):
        assert np.abs(y - self.expected).max() <= tolerance * np.abs(self.expected).max()

    def check_rounded(self, y, level):
        """Each sum is off by what rows rounded to 16 bits make of it, and float32's last bits.

        A term is off by up to half a step either way, sums by six times the deviation of that at
        most. A step is a 32767th of the largest term of a block, or the smallest one of which no
        term of it rounds to more than 32767 of those that are powers of two times the mantissa of a
        32767th of the largest term of all whole blocks.
        """
        terms, size = self.sizes.terms, self.sizes.size
        x = np.abs(self.x.astype(np.float64))
        blocks = np.pad(x, ((0, 0), (0, -terms % size))).reshape(len(x), -1, size)
        steps = blocks.max(-1) / 32767
        if scales_by_exponents(level):
            whole = blocks[:, : terms // size].max((1, 2), initial=0)
            factors = np.where(whole == 0, 1, 2 * np.frexp(whole / 32767)[0])[:, None]
            powers = np.ceil(np.log2(np.maximum(blocks.max(-1), 1e-30) / factors / 32767.5))
            steps = factors * 2.0**powers
        steps = np.repeat(steps, size, axis=1)[:, :terms]
        deviation = np.sqrt(steps**2 @ self.matrix**2 / 12)
        last_bits = 2.0**-21 * (x @ self.reach + np.abs(self.bias))
        assert (np.abs(y - self.expected) <= 6 * deviation + last_bits).all()


def beside(guarded, numbers, kind):
    """Numbers of blocks in the order of panels, as bytes."""
    columns, blocks = numbers.shape
    padded = np.zeros((-(-columns // COLUMNS) * COLUMNS, blocks), kind)
    padded[:columns] = numbers
    panels = padded.reshape(-1, COLUMNS, blocks).swapaxes(1, 2)
    return guarded.array(np.ascontiguousarray(panels).reshape(-1).view(np.uint8))


def levels_beside(guarded, rng, shape, size):
    """Random levels with their factors, as bytes, and what they come to (columns, blocks)."""
    columns, blocks = shape
    each = GROUP_TERMS // size
    levels = rng.integers(-128, 128, shape).astype(np.int8)
    factors = rng.uniform(-1e-3, 1e-3, (columns, blocks // each)).astype(np.float32)
    both = beside(guarded, levels, np.int8), beside(guarded, factors, np.float32)
    return guarded.array(np.concatenate(both)), levels * np.repeat(factors, each, axis=1)


def rounded_rows(problem, level, threads):
    """The left side as int16; as it is where kernels take it so."""
    guarded, sizes = problem.guarded, problem.sizes
    x = guarded.array(problem.x).reshape(-1)
    if not level.native:
        return x, x
    quantized = guarded.array(np.full(sizes.rows * row_bytes(*sizes[1:4:2]), 255, np.uint8))
    exponents = int(scales_by_exponents(level))
    layout = RowLayout(sizes.rows, *sizes[1:4:2], sizes.zeros, sizes.zero, exponents)
    kernel = int16_rows_kernel(level, problem.variant)
    for tid in range(threads):
        quantize_rows(x, quantized, kernel, layout, tid, threads)
    return x, quantized


def run(problem, multiply, x, quantized, kernels, each, threads, shares, *more):
    """Runs a product on so many threads, each with so much scratch memory."""
    guarded, sizes = problem.guarded, problem.sizes._replace(shares=shares)
    y = guarded.array(np.full((sizes.rows, sizes.columns), 7, np.float32))
    bias = guarded.array(problem.bias)
    arrays = BlockArrays(problem.w, problem.scales, problem.zeros, bias, y.reshape(-1))
    floats = guarded.array(np.full(threads * each, np.nan, np.float32))
    for tid in range(threads):
        multiply(x, quantized, arrays, kernels, sizes, *more, floats, tid, threads)
    return y


def run_rows(problem, level, threads, shares):
    x, quantized = rounded_rows(problem, level, threads)
    kernels, each = block_kernels(level, problem.variant), scratch_floats(problem.sizes.size)
    return run(problem, multiply_blocks, x, quantized, kernels, each, threads, shares)


def run_pairs(problem, level, threads, shares, depth=1):
    size = problem.sizes.size
    x, quantized = rounded_rows(problem, level, threads)
    kernels = pair_kernels(level, problem.variant)
    unpacked = Unpacked(2, size, width(level), depth)
    operands = x, quantized, kernels, thread_floats(size, unpacked)
    return run(problem, multiply_unpacked_rows, *operands, threads, shares, unpacked)


def run_quads(problem, level, threads, shares, group, unit, depth=1):
    guarded, sizes, variant = problem.guarded, problem.sizes, problem.variant
    unpacked = Unpacked(1, unit, width(level), depth)
    padded = -(-sizes.terms // sizes.size) * sizes.size
    group = min(group, padded)
    x = guarded.array(problem.x).reshape(-1)
    of_row = unpacked_row_bytes(sizes.terms, sizes.size, unpacked)
    quantized = guarded.array(np.full(sizes.rows * of_row, 255, np.uint8))
    rest = guarded.array(np.full(threads * group, np.nan, np.float32))
    kernel = int8_rows_kernel(level, variant)
    for tid in range(threads):
        layout = GroupSizes(sizes.terms, padded, group, unit, sizes.zero)
        quantize_groups(x, quantized, kernel, rest, layout, tid, threads)
    operands = x, quantized, quad_kernels(level, variant), thread_floats(sizes.size, unpacked)
    return run(problem, multiply_unpacked_rows, *operands, threads, shares, unpacked)


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
    problem.check_rounded(run_rows(problem, level, threads, shares), level)
    guarded.release()


@pytest.mark.parametrize("level", [level for level in LEVELS if scales_by_exponents(level)])
@pytest.mark.parametrize("variant", VARIANTS, ids=[variant.name for variant in VARIANTS])
@examples(8)
@given(
    rows=st.integers(1, 16),
    terms=st.integers(1, 300),
    columns=st.integers(1, 40),
    size=st.sampled_from([16, 32, 64]),
    power=st.integers(-90, 90),
    seed=st.integers(0, 99),
)
def test_rows_that_16_bits_hold(level, variant, rows, terms, columns, size, power, seed):
    """Nothing is lost of rows of whole numbers times powers of two, of which 32767 are largest."""
    guarded = Guarded()
    problem = Problem(guarded, seed, variant, rows, terms, columns, size)
    rng = np.random.default_rng(seed)
    whole = rng.integers(-32767, 32768, problem.x.shape)
    of_blocks = rng.integers(-16, 1, (rows, -(-terms // size)))
    whole[:, 0], of_blocks[:, 0] = 32767, 0
    powers = power + np.repeat(of_blocks, size, axis=1)[:, :terms]
    problem.x = np.ldexp(whole.astype(np.float32), powers)
    problem.bias *= 0
    problem.expected = problem.exact(problem.x)
    y = run_rows(problem, level, 1, 1)
    lost = np.abs(y - problem.expected)
    reach = np.abs(problem.x.astype(np.float64)) @ problem.reach
    assert (lost <= 2.0**-21 * reach).all()
    guarded.release()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("terms", [32, 27])
def test_largest_terms_that_round_to_powers_of_two(level, terms):
    """No level of a row wraps round where its largest term is about to become 32768."""
    guarded = Guarded()
    problem = Problem(guarded, 3, VARIANTS[0], 8, terms, 16, 32)
    edge, top = np.float32(32767.5), np.float32(32768)
    near = [np.nextafter(edge, np.float32(0)), edge, np.nextafter(top, np.float32(0)), top]
    problem.x[:, 5] = np.ldexp(np.array([*near, *near], np.float32), [-15] * 4 + [-40] * 4)
    problem.x[:4] = np.clip(problem.x[:4], -0.9, 1)
    problem.x[4:, 6:], problem.x[4:, :5] = 0, 0
    problem.expected = problem.exact(problem.x)
    problem.check_rounded(run_rows(problem, level, 1, 1), level)
    guarded.release()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "variant", LEVEL_VARIANTS, ids=[variant.name for variant in LEVEL_VARIANTS]
)
@examples(8)
@given(
    rows=st.integers(1, 40),
    groups=st.integers(1, 4),
    columns=st.integers(1, 70),
    size=st.sampled_from([16, 32]),
    threads=st.integers(1, 4),
    unusual=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_by_levels(level, variant, rows, groups, columns, size, threads, unusual, seed):
    guarded = Guarded()
    terms = groups * GROUP_TERMS
    problem = Problem(guarded, seed, variant, rows, terms, columns, size)
    if unusual:
        problem.x[rows // 2, terms // 2] = INF
    y = run_rows(problem, level, threads, threads)
    if unusual:
        assert not np.isfinite(y[rows // 2]).any()
        y[rows // 2], problem.x[rows // 2] = problem.expected[rows // 2], 0
        problem.expected[rows // 2] = y[rows // 2]
    problem.check_rounded(y, level)
    guarded.release()


@pytest.mark.parametrize("variant", LEVEL_VARIANTS[:2], ids=lambda variant: variant.name)
@pytest.mark.parametrize("size", [16, 32])
def test_levels_become_floats_in_the_order_of_panels(variant, size, guarded):
    problem = Problem(guarded, 1, variant, 1, 3 * GROUP_TERMS, 41, size)
    blocks, each = 3 * GROUP_TERMS // size, GROUP_TERMS // size
    out = guarded.array(np.full(4 * 48 * blocks, 255, np.uint8))
    for tid in range(2):
        widen_levels(problem.scales, out, blocks, each, tid, 2)
    made = np.array(out).view(np.float32).reshape(3, blocks, COLUMNS).swapaxes(1, 2)
    levels = np.array(problem.scales)[: 48 * blocks].view(np.int8)
    factors = np.array(problem.scales)[48 * blocks :].view(np.float32).reshape(3, 3, COLUMNS)
    expected = levels.reshape(3, blocks, COLUMNS) * np.repeat(factors, each, axis=1)
    np.testing.assert_array_equal(made, expected.swapaxes(1, 2))


PAIRED = [level for level in LEVELS if row_counts(level, Factors.PAIRS)]


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
    depth = data.draw(st.integers(1, 3))
    problem.check_rounded(run_pairs(problem, level, threads, shares, depth), level)
    guarded.release()


@pytest.mark.parametrize("level", [AVX512, AVX512_BF16, AMX])
def test_weights_become_int16_where_two_units_multiply(level):
    """Many rows share them then; where vectors are computed in halves, few rows unpack them."""
    sizes = BlockSizes(576, 1536, 32, 4)
    for halves_vectors in (False, True):
        machine = MachineModel(level, halves_vectors=halves_vectors)
        found = unpacked_sides(PrecisionPolicy(machine, Arithmetic.F32, 2), sizes)
        assert (found is None) is halves_vectors
        assert found is None or found[:3] == (2, 32, 32)


@pytest.mark.parametrize("level", PAIRED)
def test_unpacked_weights_leave_rows_that_are_not_finite_exact(level, guarded):
    problem = Problem(guarded, 0, VARIANTS[0], 40, 600, 20, 32)
    plain = run_pairs(problem, level, 2, 1)
    problem.x[17, 5] = INF
    y = run_pairs(problem, level, 2, 1)
    assert not np.isfinite(y[17]).any()
    np.testing.assert_array_equal(np.delete(y, 17, 0), np.delete(plain, 17, 0))


QUADS = [
    (level, variant)
    for level in LEVELS
    for variant in VARIANTS
    if longest_unit(level, variant.bits)
]


def grouped(x, group):
    """Rows in multiples of a 127th of the largest number of each group, by numpy."""
    rows, terms = x.shape
    padded = np.zeros((rows, -(-terms // group), group), np.float32)
    padded.reshape(rows, -1)[:, :terms] = x
    largest = np.abs(padded).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        levels = np.where(largest > 0, np.rint(padded * (np.float32(127) / largest)), 0)
    scales = (largest / np.float32(127)).astype(np.float64)
    return (levels * scales).reshape(rows, -1)[:, :terms]


@pytest.mark.parametrize(
    ("level", "variant"), QUADS, ids=[f"{level}-{variant.name}" for level, variant in QUADS]
)
@examples(8)
@given(
    rows=st.integers(1, 40),
    terms=st.integers(1, 1300),
    columns=st.integers(1, 70),
    size=st.sampled_from([16, 32, 64, 128, 256]),
    group=st.sampled_from([32, 64, 96, 128, 4096]),
    threads=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_rows_of_bytes(level, variant, rows, terms, columns, size, group, threads, seed, data):
    guarded = Guarded()
    problem = Problem(guarded, seed, variant, rows, terms, columns, size)
    shares = data.draw(st.integers(1, threads))
    longest = min(longest_unit(level, variant.bits), math.gcd(size, group))
    unit = data.draw(st.sampled_from([unit for unit in (16, 32, 64) if longest % unit == 0]))
    depth = data.draw(st.integers(1, 3))
    y = run_quads(problem, level, threads, shares, group, unit, depth)
    x = grouped(problem.x, group)
    without_signs = (np.abs(x) @ np.abs(problem.matrix)).max()
    assert np.abs(y - problem.exact(x)).max() <= 2e-6 * (without_signs + 1)
    guarded.release()


@pytest.mark.parametrize(
    ("level", "variant"), QUADS, ids=[f"{level}-{variant.name}" for level, variant in QUADS]
)
def test_sums_of_the_largest_bytes_are_exact(level, variant, guarded):
    """All weights and numbers of one sign as large as can be, and a zero point of zero."""
    problem = Problem(guarded, 0, variant, 13, 640, 40, 32)
    problem.w[...] = 255
    problem.x[...] = np.where(np.arange(13) % 2, -1, 1)[:, None] * np.float32(3)
    if variant.zeros is not Zeros.EQUAL:
        problem.zeros[...] = 0
    zero = 5 if variant.zeros is Zeros.EQUAL else 0
    stored = problem.scales.view(np.float16 if variant.halves else np.float32)
    scales = stored.reshape(-1, 20, COLUMNS).astype(np.float64).sum(1).reshape(-1)[:40]
    top = (1 << variant.bits) - 1 - zero
    problem.expected = problem.x[:, :1] * 32 * top * scales + problem.bias
    problem.check(run_quads(problem, level, 2, 1, 32, 32), 1e-5)


@pytest.mark.parametrize(
    ("level", "variant"),
    QUADS[:: len(VARIANTS)],
    ids=[str(level) for level, _ in QUADS[:: len(VARIANTS)]],
)
def test_rows_of_bytes_that_are_not_finite_or_tiny(level, variant, guarded):
    problem = Problem(guarded, 0, variant, 40, 600, 20, 32)
    problem.x[3, :64], problem.x[4] = 0, 1e-38
    plain = run_quads(problem, level, 2, 1, 32, 32)
    problem.expected = problem.exact(
        grouped(np.where(problem.x == np.float32(1e-38), 0, problem.x), 32)
    )
    problem.check(plain, 1e-5)
    problem.x[17, 5], problem.x[18, 599] = INF, np.nan
    y = run_quads(problem, level, 2, 1, 32, 32)
    assert not np.isfinite(y[17:19]).any()
    np.testing.assert_array_equal(np.delete(y, (17, 18), 0), np.delete(plain, (17, 18), 0))


def run_tiles(problem, arithmetic, threads):
    guarded, sizes, planes = problem.guarded, problem.sizes, arithmetic.planes
    kernels = packed_lhs_kernels(AMX, arithmetic)
    x = guarded.array(problem.x).reshape(-1)
    tiles = guarded.array(np.full(packed_lhs_size(sizes.rows, sizes.terms, planes), -1, np.int16))
    tiles = tiles.view(np.uint16)
    for tid in range(threads):
        pack_lhs(x, tiles, kernels, sizes.rows, sizes.terms, planes, tid, threads)
    return run_laid(problem, arithmetic, tiles, threads, x)


def run_laid(problem, arithmetic, tiles, threads, x=None):
    """The product of rows that are laid out; without `x` they are there as tiles alone."""
    guarded, sizes, planes = problem.guarded, problem.sizes, arithmetic.planes
    kernels = packed_lhs_kernels(AMX, arithmetic)
    product = MatrixSizes(sizes.rows, sizes.terms, sizes.columns, planes)
    table = unpacked_table(product, MachineModel(AMX, threads), threads)
    context = UnpackContext(
        np.full(threads * thread_bytes(table), 255, np.uint8),
        np.full(threads * unpacked_size(table), 0xFFFF, np.uint16),
        np.full(threads * scratch_floats(sizes.size), np.nan, np.float32),
        kernels,
        unpack_kernel(AMX, problem.variant, planes),
        np.full(threads * sizes.terms, np.nan, np.float32),
        table,
    )
    x = np.zeros(0, np.float32) if x is None else x
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
@pytest.mark.sampled(2)
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
