"""What products are computed in where float32 may be split."""

from __future__ import annotations

import numpy as np
import pytest

from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.llvm.levels import AMX, AVX512_BF16
from partita_cpu.machine_model import MachineModel

FINE = np.ones(3, np.float32)


def arithmetic(images, weights=FINE, wanted=Arithmetic.BF16X3):
    return PrecisionPolicy(MachineModel(AMX), wanted, 2).product_arithmetic(images, weights)


def window(channels, outputs, size=7):
    across = {"out_height": size, "out_width": size}
    return Images(1, size + 2, size + 2, channels, outputs, kernel=(3, 3), **across)


def pointwise(channels, outputs, size=8):
    return Images(1, size, size, channels, outputs, out_height=size, out_width=size)


@pytest.mark.parametrize(
    "images",
    [
        Images.matrix(64, 288, 64),
        Images.matrix(64, 288, 128),
        pointwise(512, 128, 7),
        pointwise(544, 128),
        pointwise(512, 127),
        pointwise(512, 512),
        Images.matrix(8, 256, 512),
        window(128, 32),
    ],
)
def test_long_sums_are_split(images):
    assert arithmetic(images) is Arithmetic.BF16X3


@pytest.mark.parametrize(
    "images",
    [
        Images.matrix(63, 224, 1024),
        Images.matrix(64, 31, 1024),
        window(5, 96),
        pointwise(64, 63),
        Images.matrix(64, 1024, 63),
        Images.matrix(7, 2048, 1000),
        window(128, 31),
        window(5, 512),
    ],
)
def test_what_gains_little_stays_float32(images):
    assert arithmetic(images) is Arithmetic.F32


@pytest.mark.parametrize("wanted", [Arithmetic.BF16X3, Arithmetic.BF16X6])
@pytest.mark.parametrize(
    "images",
    [
        Images.matrix(64, 224, 1024),
        Images.matrix(64, 32, 128),
        Images.matrix(64, 256, 511),
        pointwise(512, 511),
        pointwise(257, 128),
        pointwise(64, 64),
        window(24, 512, 10),
        window(96, 17, 10),
    ],
)
def test_short_sums_are_split_exactly(images, wanted):
    assert arithmetic(images, wanted=wanted) is Arithmetic.BF16X6


@pytest.mark.parametrize("made", [window, pointwise])
def test_small_images_are_not_split_exactly_for_many_threads(made):
    def chosen(size, threads, wanted=Arithmetic.BF16X6):
        policy = PrecisionPolicy(MachineModel(AMX), wanted, threads)
        return policy.product_arithmetic(made(128, 256, size), FINE)

    assert chosen(14, 1) is chosen(14, 2) is chosen(14, 6) is Arithmetic.BF16X6
    assert chosen(14, 8) is chosen(14, 16) is chosen(28, 32) is Arithmetic.F32
    assert chosen(28, 16) is chosen(56, 64) is chosen(6, 1) is Arithmetic.BF16X6
    assert chosen(6, 2) is chosen(5, 1) is Arithmetic.F32
    for size in (14, 56):  # which three products are exact enough depends on no number of threads
        one, many = (chosen(size, threads, Arithmetic.BF16X3) for threads in (1, 16))
        assert (one is Arithmetic.BF16X3) == (many is Arithmetic.BF16X3)


def test_few_rows_of_a_thread_are_split_in_three_only_for_many_outputs():
    def chosen(images, threads):
        policy = PrecisionPolicy(MachineModel(AMX), Arithmetic.BF16X3, threads)
        return policy.product_arithmetic(images, FINE)

    narrow, wide = pointwise(1024, 256, 14), pointwise(1024, 512, 14)
    assert chosen(narrow, 16) is Arithmetic.F32
    assert chosen(wide, 16) is chosen(window(256, 256, 14), 16) is Arithmetic.BF16X3
    assert chosen(narrow, 4) is chosen(pointwise(1024, 256, 28), 16) is Arithmetic.BF16X3


def test_matrices_are_split_exactly_for_any_number_of_threads():
    policy = PrecisionPolicy(MachineModel(AMX), Arithmetic.BF16X6, 64)
    images = Images.matrix(128, 256, 512)
    assert policy.matrix_arithmetic(images, FINE) is Arithmetic.BF16X6


def test_nothing_is_split_with_loss_unless_it_may_be():
    assert arithmetic(Images.matrix(64, 4096, 4096), wanted=Arithmetic.BF16X6) is Arithmetic.BF16X6


def test_sums_of_what_is_computed_on_the_way_may_be_shorter():
    def chosen(depth, wanted=Arithmetic.BF16X3, outputs=16):
        policy = PrecisionPolicy(MachineModel(AMX), wanted, 2)
        return policy.preferred_arithmetic(pointwise(depth, outputs), computed=True)

    assert chosen(288) is Arithmetic.BF16X3
    assert chosen(256) is chosen(32) is chosen(512, Arithmetic.BF16X6) is Arithmetic.BF16X6
    assert chosen(512, outputs=127) is chosen(512, outputs=512) is Arithmetic.BF16X3
    assert chosen(512, outputs=128) is Arithmetic.BF16X6
    assert chosen(31) is chosen(512, Arithmetic.F32) is Arithmetic.F32
    assert chosen(8, Arithmetic.BF16) is Arithmetic.BF16


def test_weights_that_would_be_infinite_stay_float32():
    large = np.array([3.4e38], np.float32)
    assert arithmetic(Images.matrix(64, 512, 512), large) is Arithmetic.F32
    assert arithmetic(Images.matrix(64, 512, 512), large, Arithmetic.BF16) is Arithmetic.F32


def test_bfloat16_is_taken_at_its_word():
    assert arithmetic(Images.matrix(1, 8, 8), wanted=Arithmetic.BF16) is Arithmetic.BF16
    assert arithmetic(window(128, 512), wanted=Arithmetic.F32) is Arithmetic.F32


@pytest.mark.parametrize("level", [AVX512_BF16, AMX])
def test_what_rounding_would_take_longer_than_it_saves(level):
    """Many rows of float32 of which vectors compute few columns; tiles compute all in bfloat16."""

    def chosen(images, halves=False, **machine):
        policy = PrecisionPolicy(MachineModel(level, **machine), Arithmetic.BF16, 2)
        return policy.preferred_for_stored(images, halves=halves)

    image = Images(1, 64, 64, 24, 8, out_height=64, out_width=64)
    for few in (Images.matrix(30000, 16, 1), image):
        assert chosen(few) is (Arithmetic.BF16 if level.tiles else Arithmetic.F32)
        assert chosen(few, halves=True) is Arithmetic.BF16
        assert chosen(few, halves_vectors=True) is Arithmetic.BF16
    for worth_it in (Images.matrix(2048, 768, 768), Images.matrix(64, 16, 1)):
        assert chosen(worth_it) is Arithmetic.BF16
