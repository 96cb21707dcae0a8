"""Levels that few machines have, on any with AVX2: their kernels with instructions emulated.

Where a machine has the level, its own tests run these kernels as they are. Here tiles have few
rows, so that compiling takes seconds; `emulated.VARIABLE` has all tests emulate whole levels.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.tile_kernels import byte_kernels
from partita_cpu.jit import isa
from partita_cpu.kernels.int8.byte_tiles import CHUNK, TOGETHER, Kind, multiply_bytes
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD, byte_panels
from partita_cpu.llvm.levels import AMX, AVX2, AVX2_VNNI, AVX512, AVX512_BF16, AVX512_VNNI
from partita_cpu.machine_model import MachineModel

from .. import emulated
from ..gemm.test_native_pack import check as check_packed
from ..gemm.test_native_pack import pack
from ..gemm.test_native_packed_lhs import check as check_laid
from ..gemm.test_native_packed_lhs import run as run_laid
from ..gemm.test_native_storage import check_part
from ..gemm.test_native_tiles import check, convolve, run

pytestmark = pytest.mark.skipif(AVX2 not in isa.available(), reason="emulates by AVX2")

FEW = dataclasses.replace(AVX512_BF16, name="few_rows", rows=3)
HALVES = [(False, False), (True, True), (True, False), (False, True)]


@pytest.fixture
def level(monkeypatch):
    """A level of 512 bits with pairs of bfloat16."""
    _install(monkeypatch, FEW)
    return FEW


def _install(monkeypatch, level):
    chains = {isa.X86_64: (*isa.CHAINS[isa.X86_64], level)}
    monkeypatch.setattr(isa, "CHAINS", chains)
    emulated.install(monkeypatch, level)


@pytest.mark.parametrize("columns", [1, 17, 70])
def test_products_in_bfloat16(level, columns, guarded):
    rng = np.random.default_rng(0)
    for rows in [*range(1, 8), 33]:
        depth = 1 + rows * 37 % 91
        x = rng.standard_normal((rows, depth)).astype(np.float32)
        w = rng.standard_normal((depth, columns)).astype(np.float32)
        cut = plan(Images.matrix(rows, depth, columns), MachineModel(level), Arithmetic.BF16, 2)
        y = run(guarded, cut, level, x, w, None, None)
        check(y, x.astype(np.float64) @ w, Arithmetic.BF16)


def rounded(x):
    """To bfloat16 and back."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def test_factors_are_rounded_and_sums_are_not(level, guarded):
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 301), (301, 50)))
    cut = plan(Images.matrix(40, 301, 50), MachineModel(level), Arithmetic.BF16, 2)
    y = run(guarded, cut, level, x, w, None, None)
    wanted = rounded(x).astype(np.float64) @ rounded(w)
    np.testing.assert_allclose(y, wanted, atol=2e-6 * np.abs(wanted).max() * 301**0.5)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3.4e38])
@pytest.mark.parametrize("depth", [32, 33])
def test_infinity_stays_in_its_row(level, special, depth, guarded):
    """Also where a run is filled up by a zero, which infinity may not meet."""
    x, w = np.ones((5, depth), np.float32), np.ones((depth, 20), np.float32)
    x[2, depth - 1] = special
    cut = plan(Images.matrix(5, depth, 20), MachineModel(level), Arithmetic.BF16, 1)
    y = run(guarded, cut, level, x, w, None, None, threads=1)
    with np.errstate(over="ignore"):
        wanted = x.sum(1, keepdims=True) * np.ones(20, np.float32)
    if special == 3.4e38:
        assert (y[2] > 3e38).all()
    else:
        np.testing.assert_array_equal(y[2], wanted[2])
    np.testing.assert_allclose(y[[0, 1, 3, 4]], depth)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride"),
    [(3, (7, 7), (2, 2)), (5, (3, 2), (1, 1)), (16, (3, 3), (1, 1)), (40, (1, 1), (1, 1))],
)
def test_convolutions_in_bfloat16(level, halves, channels, kernel, stride):
    pads = kernel[0] // 2, kernel[1] // 2
    sizes = [(17 + 2 * p - k) // s + 1 for p, k, s in zip(pads, kernel, stride, strict=True)]
    images = Images(2, 17, 17, channels, 37, 1, kernel, stride, (1, 1), pads, pads, *sizes)
    storage = Storage(*halves, channels + 3, 2, 41, 1)
    check_part(level, Arithmetic.BF16, images, 0, 2, storage)
    w = np.random.default_rng(0).standard_normal((37, channels, *kernel)).astype(np.float32)
    cut = plan(images, MachineModel(level), Arithmetic.BF16, 2, storage)
    check_packed(cut, pack(cut, w), w)


def test_images_in_bfloat16_are_read_where_they_lie(level):
    images, odd = (Images(1, 1, 9, channels, 8, out_width=9) for channels in (30, 31))
    assert plan(images, MachineModel(level), Arithmetic.BF16, 1).source is Source.COLUMNS
    for one, source in ((images, Source.DIRECT), (odd, Source.COLUMNS)):
        half = Storage(True, True, one.channels, 0, one.outputs, 0)
        assert plan(one, MachineModel(level), Arithmetic.BF16, 1, half).source is source
        check_part(level, Arithmetic.BF16, one, 0, 1, half)


def test_a_run_is_filled_up_to_pairs_only(level):
    cut = plan(Images.matrix(9, 33, 8), MachineModel(level), Arithmetic.BF16, 1)
    assert (cut.padded, cut.step) == (34, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("able", [AVX2_VNNI, AVX512, AVX512_VNNI], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 33])
def test_products_of_bytes(able, rows, monkeypatch, guarded):
    small = dataclasses.replace(able, name=f"few_rows_of_{able}", rows=1)
    _install(monkeypatch, small)
    rng = np.random.default_rng(rows)
    for terms, columns in ((1, 1), (64, 64), (67, 130), (500, 63)):
        width = -(-terms // QUAD) * QUAD
        x = np.zeros((rows, width), np.uint8)
        x[:, :terms] = rng.integers(200, 256, (rows, terms))
        w = rng.integers(-128, -100, (terms, columns)).astype(np.int8)  # 16 bits would overflow
        y = guarded.array(np.full((rows, columns), 7, np.int32))
        table = [terms, columns, width // QUAD, 0, 0, Kind.SUMS, -128, 127, 1, 0, 6]
        for tid in range(2):
            multiply_bytes(
                guarded.array(x).reshape(-1),
                guarded.array(byte_panels(w, width)),
                np.zeros(rows, np.int32),
                np.zeros(columns, np.int32),
                *[np.zeros(1, np.int32)] * 2,
                *[np.ones(1, np.float32)] * 2,
                np.zeros(columns, np.int32),
                np.zeros(1, np.int32),
                y.reshape(-1),
                np.full(2 * TOGETHER * CHUNK * PANEL, -1, np.int32),
                byte_kernels(small),
                np.array(table, np.int64),
                tid,
                2,
            )
        np.testing.assert_array_equal(y, x[:, :terms].astype(np.int64) @ w.astype(np.int64))


def test_convolutions_agree_with_float32(level, guarded):
    rng = np.random.default_rng(0)
    images = Images(1, 9, 11, 64, 40, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 9, 11)
    x = rng.standard_normal((99, 64)).astype(np.float32)
    w = rng.standard_normal((40, 64, 3, 3)).astype(np.float32)
    for arithmetic in (Arithmetic.F32, Arithmetic.BF16):
        y = run(guarded, plan(images, MachineModel(level), arithmetic, 2), level, x, w, None, None)
        check(y, convolve(images, x, w), arithmetic)


@pytest.mark.parametrize("arithmetic", [Arithmetic.BF16, Arithmetic.BF16X3])
def test_products_on_tiles(monkeypatch, arithmetic, guarded):
    emulated.install(monkeypatch, AMX)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((70, 150)).astype(np.float32)
    w = rng.standard_normal((150, 40)).astype(np.float32)
    check_laid(run_laid(guarded, arithmetic, x, w), x.astype(np.float64) @ w, arithmetic, x, w)
