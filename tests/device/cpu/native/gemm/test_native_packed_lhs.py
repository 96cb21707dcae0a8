"""Products whose left side is laid out as tiles, against float64, on memory that ends with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.lowering import ActivationCode
from partita.system.cache_sizes import ASSUMED
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.gemm.packed_lhs.packed_lhs_table import (
    SUMS,
    MatrixSizes,
    packed_lhs_size,
    packed_lhs_table,
    thread_bytes,
)
from partita_cpu.gemm.packed_lhs.product import multiply_packed, pack_lhs
from partita_cpu.gemm.packing.weights import pack, pack_bias
from partita_cpu.gemm.product_records import Epilogue, ProductArrays
from partita_cpu.gemm.tile_kernels import packed_lhs_kernels
from partita_cpu.jit.isa import detected
from partita_cpu.llvm.levels import AMX
from partita_cpu.machine_model import MachineModel
from partita_cpu.threads.claims import ALL_TAKEN, LINE

from ..conftest import CACHES, GATES, INFINITIES, NANS, TOLERANCE, Guarded, gated, own_share_left

ARITHMETICS = [a for a in Arithmetic if a.in_bfloat16 and detected().tiles]
INF = float("inf")


def run(
    guarded,
    arithmetic,
    x,
    w,
    bias=None,
    residual=None,
    threads=2,
    code=0,
    gate=0,
    low=-INF,
    out=None,
    caches=ASSUMED,
    claims=None,
):
    """The result; each thread computes its own share, or what it finds in `claims`."""
    (rows, depth), columns, planes = x.shape, w.shape[1], arithmetic.planes
    kernels = packed_lhs_kernels(AMX, arithmetic, ActivationCode(code))
    tiles = guarded.array(np.full(packed_lhs_size(rows, depth, planes), 0xFFFF, np.uint16))
    cut = plan(Images.matrix(rows, depth, columns), MachineModel(AMX), arithmetic, threads)
    sizes, machine = MatrixSizes(rows, depth, columns, planes), MachineModel(AMX, 2, caches)
    table = packed_lhs_table(sizes, machine, threads, out is not None)
    y = guarded.array(np.full((rows, columns), 7, np.float32))
    scratch = np.full(threads * thread_bytes(table), 255, np.uint8)  # NaN, in every type
    source = guarded.array(x).reshape(-1)
    for tid in range(threads):
        pack_lhs(source, tiles, kernels, rows, depth, planes, tid, threads)
    for tid in range(threads):
        multiply_packed(
            tiles,
            ProductArrays(
                guarded.array(pack(cut, w)),
                guarded.array(pack_bias(cut, bias)),
                (y if residual is None else guarded.array(residual)).reshape(-1),
                y.reshape(-1),
            ),
            tiles if out is None else out,
            scratch,
            kernels,
            table,
            own_share_left(tid, threads) if claims is None else claims,
            Epilogue(int(residual is not None), low, INF, gate, code, 0.0, 0.0),
            tid,
            threads,
        )
    return y


def check(y, expected, arithmetic, x, w):
    """Against the largest sum, or what sums of such terms come to if none happens to be large."""
    usual = np.sqrt((x.astype(np.float64) ** 2 @ w.astype(np.float64) ** 2).max())
    scale = max(np.abs(expected).max(initial=0), usual)
    assert np.abs(y - expected).max(initial=0) <= TOLERANCE[arithmetic] * scale


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@examples(60)
@given(
    rows=st.integers(1, 150),
    depth=st.integers(1, 300) | st.integers(760, 1700),
    columns=st.integers(1, 200),
    threads=st.integers(1, 3) | st.sampled_from([7, 16]),
    seed=st.integers(0, 99),
    caches=st.sampled_from([*CACHES.values()]),
    data=st.data(),
)
def test_products(arithmetic, rows, depth, columns, threads, seed, caches, data):
    guarded, rng = Guarded(), np.random.default_rng(seed)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    w = data.draw(st.sampled_from([w, np.asfortranarray(w)]))
    bias = rng.standard_normal(columns).astype(np.float32)
    residual = rng.standard_normal((rows, columns)).astype(np.float32)
    bias, residual = data.draw(st.sampled_from([(None, None), (bias, None), (bias, residual)]))
    expected = x.astype(np.float64) @ w
    for term in (bias, residual):
        expected = expected if term is None else expected + term
    code = data.draw(st.sampled_from([ActivationCode.NONE, ActivationCode.TANH]))
    y = run(guarded, arithmetic, x, w, bias, residual, threads, int(code), caches=caches)
    # Tanh brings results nearer to one another, but not by so much as it makes them smaller.
    check(y, np.tanh(expected) if code else expected, arithmetic, x, w)
    shared = np.zeros(threads * LINE, np.int64)
    rest = (bias, residual, threads, int(code))
    taken = run(guarded, arithmetic, x, w, *rest, caches=caches, claims=shared)
    guarded.release()
    np.testing.assert_array_equal(taken, y)  # whoever computes a tile
    assert threads == 1 or (shared[::LINE] == ALL_TAKEN).all()


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(900, 64, 40), (130, 1600, 700)])
def test_many_rows_and_sums_that_are_put_aside(arithmetic, rows, depth, columns, guarded):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    sizes = MatrixSizes(rows, depth, columns, arithmetic.planes)
    table = packed_lhs_table(sizes, MachineModel(AMX), 2)
    assert rows > 500 or thread_bytes(table) > SUMS // 2 * 4096
    check(run(guarded, arithmetic, x, w), x.astype(np.float64) @ w, arithmetic, x, w)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("code", [ActivationCode.NONE, ActivationCode.TANH])
@pytest.mark.parametrize("special", [*NANS, *INFINITIES, 0x7F7FC99E])  # the last: 3.4e38
def test_special_numbers_reach_their_rows_and_no_others(arithmetic, code, special, guarded):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((70, 800)).astype(np.float32)
    w = np.abs(rng.standard_normal((800, 34))).astype(np.float32) + 1
    w[790, 3] = 0
    plain = run(guarded, arithmetic, x, w, code=int(code))
    x.view(np.uint32)[37, 790] = special
    y = run(guarded, arithmetic, x, w, code=int(code))
    others = np.arange(70) != 37
    np.testing.assert_allclose(y[others], plain[others], rtol=2e-5, atol=2e-3)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x[37:38] @ w
    expected = np.tanh(expected) if code else expected
    finite = np.isfinite(x[37, 790])  # rounds to infinity in bfloat16
    expected[0, 3] = np.nan if finite else expected[0, 3]
    np.testing.assert_array_equal(np.isnan(y[37]), np.isnan(expected[0]))
    there = ~np.isnan(expected[0])
    np.testing.assert_array_equal(y[37][there], expected[0][there])


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_a_gate_and_bounds(arithmetic, guarded):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 70)).astype(np.float32)
    w = rng.standard_normal((70, 50)).astype(np.float32)
    expected = x.astype(np.float64) @ w
    check(run(guarded, arithmetic, x, w, low=0.0), expected.clip(0), arithmetic, x, w)
    for gate in GATES[1:]:
        y = run(guarded, arithmetic, x, w, gate=gate)
        check(y, gated(expected, gate), arithmetic, x, w)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("code", [ActivationCode.NONE, ActivationCode.SIGMOID])
@pytest.mark.parametrize("special", [0, INF])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (16, 64), (17, 33), (70, 130)])
def test_results_that_stay_laid_out(arithmetic, code, special, rows, columns, guarded):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 300)).astype(np.float32)
    x[rows // 2, 7] = special
    w = rng.standard_normal((300, columns)).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)
    plain = run(guarded, arithmetic, x, w, bias, code=int(code))
    planes, kernels = arithmetic.planes, packed_lhs_kernels(AMX, arithmetic)
    wanted, found = (
        guarded.array(np.full(packed_lhs_size(rows, columns, planes), 0xFFFF, np.uint16))
        for _ in "ab"
    )
    pack_lhs(plain.reshape(-1), wanted, kernels, rows, columns, planes, 0, 1)
    y = run(guarded, arithmetic, x, w, bias, code=int(code), out=found)
    assert (y == 7).all()
    count = 2 * -(-rows // 16) * -(-columns // 32)
    np.testing.assert_array_equal(found[:-count], wanted[:-count])
    sizes = [a[-count:].view(np.int32).reshape(-(-rows // 16), -1).max(1) for a in (found, wanted)]
    np.testing.assert_array_equal(*sizes)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_the_same_for_any_number_of_threads(arithmetic, guarded):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 900)).astype(np.float32)
    w = rng.standard_normal((900, 300)).astype(np.float32)
    results = [run(guarded, arithmetic, x, w, threads=threads) for threads in (1, 2, 3)]
    for y in results[1:]:
        np.testing.assert_array_equal(y, results[0])
