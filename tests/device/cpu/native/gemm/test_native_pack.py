"""Packed weights: every element in its place, from memory that ends where the weights end."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_flags import HAS_LARGE_PAGES, flags_of
from sampling import examples

from partita_cpu.gemm import deferred_packing
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.deferred_packing import DeferredWeights
from partita_cpu.gemm.packing.weights import pack, pack_bias
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.isa import detected
from partita_cpu.llvm.levels import AMX, AVX2, NEON_BF16
from partita_cpu.machine_model import MachineModel
from partita_cpu.nhwc.depthwise_direct import pack_row, pack_taps
from partita_cpu.threads.step_team import team_of

from ..conftest import Guarded, choices


def unpacked(cut, packed):
    """The sums of the parts: (groups, rows with their padding, columns with those too many)."""
    groups, rows = cut.images.groups, cut.taps * cut.padded
    if cut.arithmetic is Arithmetic.F32:
        whole = packed.view(np.float32).astype(np.float64)
        whole = whole.reshape(groups, cut.blocks, rows, cut.columns)
    elif cut.arithmetic is Arithmetic.F16:
        whole = packed.view(np.float16).astype(np.float64)
        whole = whole.reshape(groups, cut.blocks, rows, cut.columns)
    elif not on_tiles(cut.level, cut.arithmetic):
        parts = packed.view(ml_dtypes.bfloat16).astype(np.float64)
        whole = parts.reshape(groups, cut.blocks, rows // 2, cut.columns, 2)
        whole = whole.transpose(0, 1, 2, 4, 3).reshape(groups, cut.blocks, rows, cut.columns)
    else:
        shape = (rows // cut.step, cut.arithmetic.planes, 2, cut.step // 2, 16, 2)
        parts = packed.view(ml_dtypes.bfloat16).astype(np.float64)
        whole = parts.reshape(groups, cut.blocks, *shape).sum(axis=3)
        # (group, block, step, half, pair, column, 2) to rows, then columns
        whole = whole.transpose(0, 1, 2, 4, 6, 3, 5).reshape(groups, cut.blocks, rows, 32)
    return whole.transpose(0, 2, 1, 3).reshape(groups, rows, -1)


def expected(cut, w):
    """The same from weights (outputs, channels of a group, down, across)."""
    groups = cut.images.groups
    outputs, channels, down, across = w.shape
    taps = (4, 3) if cut.in_place else (3, 4)  # columns of taps, or rows
    runs = w.reshape(groups, outputs // groups, channels, down, across).transpose(0, *taps, 2, 1)
    runs = runs.reshape(groups, cut.taps, cut.run, outputs // groups)
    whole = np.zeros((groups, cut.taps, cut.padded, cut.blocks * cut.columns))
    whole[:, :, : cut.run, : outputs // groups] = runs
    return whole.reshape(groups, cut.taps * cut.padded, -1)


def check(cut, packed, w):
    steps = {Arithmetic.BF16: 2.0**-8, Arithmetic.BF16X3: 2.0**-16, Arithmetic.F16: 2.0**-11}
    least = 2.0**-25 if cut.arithmetic is Arithmetic.F16 else 0  # half the step of the smallest
    wanted = expected(cut, w)
    error = np.abs(unpacked(cut, packed) - wanted)
    assert (error <= steps.get(cut.arithmetic, 0) * np.abs(wanted) + least).all()


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@examples(40)
@given(data=st.data())
def test_convolutions(level, arithmetic, data):
    groups, down, across = (data.draw(st.sampled_from(s)) for s in ((1, 1, 3), (1, 3), (1, 2, 3)))
    channels, outputs = (groups * data.draw(st.integers(1, 70)) for _ in range(2))
    pad = data.draw(st.integers(0, across - 1))
    half_in = arithmetic is Arithmetic.BF16 and level.keeps_bfloat16 and data.draw(st.booleans())
    sizes = (20 + down - 1, 20 + 2 * pad), ((down, across), (1, 1), (1, 1), (0, pad), (0, pad))
    out = 20, 20 + 4 * pad - across + 1
    images = Images(1, *sizes[0], channels, outputs, groups, *sizes[1], *out)
    cut = plan(images, MachineModel(level), arithmetic, 2, Storage(half_in=half_in))
    rng = np.random.default_rng(0)
    guarded = Guarded()
    w = rng.standard_normal((outputs, channels // groups, down, across)).astype(np.float32)
    check(cut, pack(cut, guarded.array(w)), w)
    guarded.release()


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@examples(30)
@given(depth=st.integers(1, 100), columns=st.integers(1, 100), order=st.sampled_from("CF"))
def test_matrices(level, arithmetic, depth, columns, order):
    w = np.random.default_rng(1).standard_normal((depth, columns)).astype(np.float32)
    cut = plan(Images.matrix(40, depth, columns), MachineModel(level), arithmetic, 2)
    guarded = Guarded()
    lying = guarded.array(w if order == "C" else np.ascontiguousarray(w.T))
    packed = pack(cut, lying if order == "C" else lying.T)
    check(cut, packed, w.T.reshape(columns, depth, 1, 1))
    guarded.release()


@pytest.mark.skipif(not detected().native, reason="packing calls kernels of the machine's level")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("depth", [5, 32, 43, 64])
@pytest.mark.parametrize("arithmetic", [Arithmetic.F32, Arithmetic.BF16])
def test_tiles_narrower_than_what_is_turned_at_once(monkeypatch, arithmetic, order, depth):
    """Tiles of NEON have eight columns; their weights can be packed on any machine."""
    if arithmetic is Arithmetic.BF16 and not detected().dots_bfloat16:
        pytest.skip("this machine lays nothing out as bfloat16")
    known = llvm_kernel.addresses(detected())
    monkeypatch.setattr(llvm_kernel, "addresses", lambda level: known)
    w = np.random.default_rng(3).standard_normal((depth, 37)).astype(np.float32)
    cut = plan(Images.matrix(40, depth, 37), MachineModel(NEON_BF16), arithmetic, 2)
    assert cut.columns == 8
    check(cut, pack(cut, np.asarray(w, order=order)), w.T.reshape(37, depth, 1, 1))


@pytest.mark.skipif(not detected().native, reason="packing calls kernels of the machine's level")
@pytest.mark.parametrize("arithmetic", [Arithmetic.F32, Arithmetic.BF16])
def test_windows_for_narrow_tiles(monkeypatch, arithmetic):
    if arithmetic is Arithmetic.BF16 and not detected().dots_bfloat16:
        pytest.skip("this machine lays nothing out as bfloat16")
    known = llvm_kernel.addresses(detected())
    monkeypatch.setattr(llvm_kernel, "addresses", lambda level: known)
    w = np.random.default_rng(4).standard_normal((29, 37, 3, 3)).astype(np.float32)
    around = (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)
    images = Images(1, 9, 9, 37, 29, 1, *around, 9, 9)
    cut = plan(images, MachineModel(NEON_BF16), arithmetic, 2)
    check(cut, pack(cut, w), w)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("kernel", [1, 3])
def test_weights_at_odd_addresses_and_shares_of_threads(level, arithmetic, kernel):
    w = np.random.default_rng(2).standard_normal((700, 170, kernel, kernel)).astype(np.float32)
    raw = bytearray(w.nbytes + 3)
    odd = np.frombuffer(raw, np.float32, w.size, offset=3).reshape(w.shape)
    odd[...] = w
    assert not odd.flags.aligned
    around = (kernel,) * 2, (1, 1), (1, 1), (kernel // 2,) * 2, (kernel // 2,) * 2
    cut = plan(Images(1, 9, 9, 170, 700, 1, *around, 9, 9), MachineModel(level), arithmetic, 2)
    whole = pack(cut, w)
    np.testing.assert_array_equal(pack(cut, odd), whole)
    np.testing.assert_array_equal(pack(cut, w, threads=2), whole)
    check(cut, whole, w)


def test_threads_that_cannot_share_calls_leave_them_to_one(monkeypatch):
    w = np.random.default_rng(6).standard_normal((700, 170, 3, 3)).astype(np.float32)
    around = (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)
    cut = plan(Images(1, 9, 9, 170, 700, 1, *around, 9, 9), MachineModel(AVX2), Arithmetic.F32, 2)
    whole = pack(cut, w)
    monkeypatch.setenv("PARTITA_CPU_ISA", "portable")
    assert team_of(2, 0).pool is None
    np.testing.assert_array_equal(pack(cut, w, threads=2), whole)


@pytest.mark.skipif(not detected().native, reason="packing calls kernels of the machine's level")
@pytest.mark.parametrize("threads", [1, 2])
@examples(20)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 300), st.sampled_from((1, 3))),
        min_size=1,
        max_size=6,
    ),
    most=st.sampled_from((1, 1 << 18, 1 << 24)),
)
def test_weights_that_wait(threads, sizes, most):
    """Some large enough for both threads, some done before all are there."""
    waiting, rng = DeferredWeights(threads, most), np.random.default_rng(5)
    found = []
    for outputs, channels, taps in sizes:
        around = (taps,) * 2, (1, 1), (1, 1), (0, 0), (0, 0)
        images = Images(1, 9, 9, channels, outputs, 1, *around, 10 - taps, 10 - taps)
        cut = plan(images, MachineModel(detected()), Arithmetic.F32, threads)
        w = rng.standard_normal((outputs, channels, taps, taps)).astype(np.float32)
        found.append((cut, pack(cut, w, threads, waiting.add), w))
    waiting.finish()
    for cut, packed, w in found:
        check(cut, packed, w)


@pytest.mark.skipif(not detected().native, reason="packing calls kernels of the machine's level")
def test_weights_whose_packing_was_interrupted_are_packed_next_time(monkeypatch):
    """Others have been handed the memory that they are packed to."""

    def interrupted(*_):
        raise KeyboardInterrupt

    waiting = DeferredWeights(1)
    cut = plan(Images.matrix(40, 70, 50), MachineModel(detected()), Arithmetic.F32, 1)
    w = np.random.default_rng(7).standard_normal((50, 70, 1, 1)).astype(np.float32)
    packed = pack(cut, w, 1, waiting.add)
    packed[:] = 0
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(deferred_packing, "pack_all", interrupted)
        waiting.finish()
    waiting.finish()
    check(cut, packed, w)


@pytest.mark.parametrize("large", [np.inf, -np.inf, np.nan, 3.4e38])
@pytest.mark.parametrize(("level", "arithmetic"), choices())
def test_what_would_be_infinite_in_bfloat16_is_not_packed(level, arithmetic, large):
    w = np.ones((70, 50), np.float32)
    w[69, 49] = large
    cut = plan(Images.matrix(40, 70, 50), MachineModel(level), arithmetic, 2)
    assert pack(cut, w).size == 0 if arithmetic.in_bfloat16 else pack(cut, w).size
    assert PrecisionPolicy(MachineModel(level), arithmetic, 2).rounds_to_infinity(w)
    w[69, 49] = 3.39e38
    assert pack(cut, w).size
    assert not PrecisionPolicy(MachineModel(level), arithmetic, 2).rounds_to_infinity(w)


SUBNORMAL = np.float32([1e-38, -1e-38, 1e-45, -1e-45])


@pytest.mark.parametrize(("depth", "columns"), [(64, 32), (37, 21)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("level", [of for of, kind in choices() if kind is Arithmetic.F32])
def test_subnormal_weights_count_as_zero(level, order, depth, columns):
    rng = np.random.default_rng(6)
    w = rng.choice([*SUBNORMAL, 0, 1.25e-38, -1.25e-38, 1, -3], (depth, columns))
    w = np.asarray(w, np.float32, order=order)
    cut = plan(Images.matrix(40, depth, columns), MachineModel(level), Arithmetic.F32, 2)
    kept = np.where(np.isin(w, SUBNORMAL), 0, w)
    check(cut, pack(cut, w), kept.T.reshape(columns, depth, 1, 1))


@pytest.mark.parametrize("height", [9, 200])
@pytest.mark.parametrize("level", [of for of, kind in choices() if kind is Arithmetic.F32])
def test_subnormal_weights_of_windows_count_as_zero(level, height):
    rng = np.random.default_rng(7)
    w = rng.choice([*SUBNORMAL, 0, 1.25e-38, 1, -3], (37, 29, 3, 3)).astype(np.float32)
    images = Images(1, height, 9, 29, 37, 1, (3, 3), *[(1, 1)] * 4, height, 9)
    cut = plan(images, MachineModel(level), Arithmetic.F32, 2)
    check(cut, pack(cut, w), np.where(np.isin(w, SUBNORMAL), 0, w))


@pytest.mark.skipif(not (HAS_LARGE_PAGES and detected().native), reason="asks Linux for them")
@pytest.mark.parametrize("side", [64, 1200])
def test_packed_weights_lie_in_large_pages(side):
    cut = plan(Images.matrix(40, side, side), MachineModel(detected()), Arithmetic.F32, 2)
    assert "hg" in flags_of(pack(cut, np.ones((side, side), np.float32)))


def test_subnormal_biases_and_taps_count_as_zero():
    w = np.concatenate([SUBNORMAL, np.float32([1.25e-38, np.nan, -np.inf])])
    kept = np.where(np.isin(w, SUBNORMAL), 0, w)
    for outputs in (7, 8):  # a tile's columns, and more
        bias = np.resize(w, outputs)
        cut = plan(Images.matrix(40, 64, outputs), MachineModel(AVX2), Arithmetic.F32, 2)
        np.testing.assert_array_equal(pack_bias(cut, bias)[:7], kept)
    np.testing.assert_array_equal(pack_row(w, 8, 7)[:7], kept)
    np.testing.assert_array_equal(pack_taps(w.reshape(7, 1, 1, 1), 8)[:7], kept)
    np.testing.assert_array_equal(w[:4], SUBNORMAL)  # the model's own stay


def test_what_packing_found_out_is_known():
    policy = PrecisionPolicy(MachineModel(AMX), Arithmetic.BF16X3, 2)
    w = np.ones((3, 4), np.float32)
    policy.note(w, True)
    assert policy.product_arithmetic(Images.matrix(64, 512, 512), w) is Arithmetic.F32
