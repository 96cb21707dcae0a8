"""Gates of products quantized in blocks by AMX, and who reads them as tiles, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.lowering import ActivationCode
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.packed_lhs.packed_lhs_table import CHUNK, STEPS, MatrixSizes, packed_lhs_size
from partita_cpu.gemm.packed_lhs.product import pack_lhs
from partita_cpu.gemm.tile_kernels import gate_kernel, packed_lhs_kernels, unpack_kernel
from partita_cpu.jit import isa
from partita_cpu.kernels.quantized_weights.gated_products import (
    PRODUCTS,
    GatedContext,
    gated_bytes,
    interleaved_bias,
    multiply_gated,
)
from partita_cpu.kernels.quantized_weights.row_products import BlockArrays, scratch_floats
from partita_cpu.kernels.quantized_weights.tile_products import unpacked_size, unpacked_table
from partita_cpu.llvm.levels import AMX, AVX2
from partita_cpu.llvm.tiles.dot_blocks import VARIANTS
from partita_cpu.machine_model import MachineModel

from .. import emulated
from ..conftest import CACHES, TOLERANCE, Guarded
from .test_native_blocks import Problem, run_laid

pytestmark = pytest.mark.skipif(
    AVX2 not in isa.available(), reason="emulates AMX by AVX2 where it lacks"
)
ARITHMETICS = [Arithmetic.BF16, Arithmetic.BF16X3]
INF = float("inf")
NAN = np.array(0x7FFFFFFF, np.uint32).view(np.float32)
"""All of its bits are ones: half a unit of its upper bits added makes a number of it."""


def activated(code, x):
    if code is ActivationCode.SILU:
        return x / (1 + np.exp(-x.clip(-700)))
    if code is ActivationCode.GELU:
        return x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def gate_of(guarded, seed, variant, rows, terms, columns, size):
    """A product whose results are where activations are neither straight nor nothing."""
    gate = Problem(guarded, seed, variant, rows, terms, columns, size)
    gate.x *= np.float32(4 / np.abs(gate.expected).max())
    gate.expected = gate.exact(gate.x)
    return gate


def beside(first, seed, variant, size):
    """Another product of the same rows."""
    rows, terms, columns = first.sizes[:3]
    other = Problem(first.guarded, seed, variant, rows, terms, columns, size)
    other.x = first.x
    other.expected = other.exact(first.x)
    return other


def laid_out(problem, arithmetic):
    """The left side as tiles."""
    sizes, planes = problem.sizes, arithmetic.planes
    tiles = np.full(packed_lhs_size(sizes.rows, sizes.terms, planes), 0xFFFF, np.uint16)
    tiles, x = problem.guarded.array(tiles), problem.guarded.array(problem.x).reshape(-1)
    pack_lhs(x, tiles, packed_lhs_kernels(AMX, arithmetic), *sizes[:2], planes, 0, 1)
    return x, tiles


def run(gate, other, arithmetic, code, threads=2, caches=None, laid=False):
    """The result as it is laid out; the left side may be there as tiles alone."""
    guarded, sizes, planes = gate.guarded, gate.sizes, arithmetic.planes
    x, tiles = laid_out(gate, arithmetic)
    machine = MachineModel(AMX, threads) if caches is None else MachineModel(AMX, threads, caches)
    product = MatrixSizes(sizes.rows, sizes.terms, sizes.columns, planes)
    table = unpacked_table(product, machine, threads, PRODUCTS)
    floats = max(scratch_floats(each.sizes.size) for each in (gate, other))
    context = GatedContext(
        np.full(threads * gated_bytes(table), 255, np.uint8),
        np.full(threads * unpacked_size(table, PRODUCTS), 0xFFFF, np.uint16),
        np.full(threads * floats, np.nan, np.float32),
        packed_lhs_kernels(AMX, arithmetic),
        *(unpack_kernel(AMX, each.variant, planes) for each in (gate, other)),
        gate_kernel(AMX, code, planes),
        np.full(threads * 16 * sizes.terms if laid else 0, np.nan, np.float32),
        table,
    )
    bias = guarded.array(interleaved_bias(gate.bias, other.bias))
    sides = (BlockArrays(each.w, each.scales, each.zeros, bias, bias) for each in (gate, other))
    out = np.full(packed_lhs_size(sizes.rows, sizes.columns, planes), 0xFFFF, np.uint16)
    out, sides = guarded.array(out), tuple(sides)
    x = np.empty(0, np.float32) if laid else x
    for tid in range(threads):
        multiply_gated(x, tiles, out, *sides, context, sizes, other.sizes, tid, threads)
    return out


def parts_of(out, problem, planes):
    """What tiles hold, (planes, rows, columns filled up to whole steps)."""
    rows, columns = problem.sizes.rows, problem.sizes.columns
    halves, steps = -(-rows // 16), -(-columns // 32)
    bits = out[: halves * steps * planes * 512].astype(np.uint32) << 16
    tiles = bits.view(np.float32).reshape(halves, steps, planes, 16, 32)
    return tiles.transpose(2, 0, 3, 1, 4).reshape(planes, 16 * halves, 32 * steps)[:, :rows]


def expected_of(gate, other, code):
    return activated(code, gate.expected) * other.expected


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(
    "code", [ActivationCode.SILU, ActivationCode.GELU, ActivationCode.GELU_TANH]
)
@examples(8)
@given(
    rows=st.integers(1, 80),
    steps=st.integers(1, 9),
    columns=st.integers(1, 100),
    variants=st.tuples(st.sampled_from(VARIANTS), st.sampled_from(VARIANTS)),
    sizes=st.tuples(st.sampled_from([32, 64]), st.sampled_from([16, 32])),
    threads=st.integers(1, 4),
    caches=st.sampled_from([*CACHES.values()]),
    seed=st.integers(0, 99),
)
def test_gates(arithmetic, code, rows, steps, columns, variants, sizes, threads, caches, seed):
    with pytest.MonkeyPatch.context() as patch:
        emulated.install(patch, AMX)
        guarded = Guarded()
        gate = gate_of(guarded, seed, variants[0], rows, 32 * steps, columns, sizes[0])
        other = beside(gate, seed + 1, variants[1], sizes[1])
        out = run(gate, other, arithmetic, code, threads, caches)
        found = parts_of(out, gate, arithmetic.planes).astype(np.float64).sum(0)
        expected = expected_of(gate, other, code)
        scale = np.abs(gate.expected).max() * np.abs(other.expected).max()
        assert np.abs(found[:, :columns] - expected).max() <= 3 * TOLERANCE[arithmetic] * scale
        assert (found[:, columns:] == 0).all()
        guarded.release()


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_sums_that_are_put_aside(arithmetic, guarded, monkeypatch):
    emulated.install(monkeypatch, AMX)
    gate = gate_of(guarded, 0, VARIANTS[0], 70, 1280, 70, 32)
    other = beside(gate, 1, VARIANTS[-1], 64)
    plain = run(gate, other, arithmetic, ActivationCode.SILU)
    small = CACHES["smallest"]
    table = unpacked_table(
        MatrixSizes(70, 1280, 70, arithmetic.planes), MachineModel(AMX, 2, small), 2, PRODUCTS
    )
    assert table[CHUNK] < table[STEPS]
    cut = run(gate, other, arithmetic, ActivationCode.SILU, caches=small)
    np.testing.assert_array_equal(cut, plain)  # sums are added in the same order


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(("special", "laid"), [(INF, False), (NAN, False), (NAN, True)])
def test_who_reads_tiles_alone_keeps_rows_that_are_not_finite_apart(
    arithmetic, special, laid, guarded, monkeypatch
):
    emulated.install(monkeypatch, AMX)
    gate = gate_of(guarded, 0, VARIANTS[0], 40, 64, 96, 32)
    other = beside(gate, 1, VARIANTS[0], 32)
    down = Problem(guarded, 2, VARIANTS[0], 40, 96, 20, 32)
    code = ActivationCode.SILU
    plain = run_laid(down, arithmetic, run(gate, other, arithmetic, code), 2)
    scale = np.abs(down.exact(expected_of(gate, other, code))).max()
    error = np.abs(plain - down.exact(expected_of(gate, other, code))).max()
    assert error <= 5 * TOLERANCE[arithmetic] * scale
    gate.x[17, 5] = special
    y = run_laid(down, arithmetic, run(gate, other, arithmetic, code, laid=laid), 2)
    assert not np.isfinite(y[17]).any()
    others = np.arange(40) // 16 != 1
    np.testing.assert_array_equal(y[others], plain[others])
    error = np.abs(np.delete(y - plain, 17, 0)).max()
    assert error <= 5 * TOLERANCE[arithmetic] * scale
