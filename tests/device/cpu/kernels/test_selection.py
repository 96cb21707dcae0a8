"""TopK, NonZero, Compress and Unique against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from single_op import check, normal, run_ours

from partita.errors import CompileError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("k", [1, 3, 6, 0])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_top_k_with_ties(axis, k, largest, dtype):
    x = RNG.integers(-5, 5, (6, 7, 8)).astype(dtype)
    check("TopK", [x, np.array([k])], outputs=2, axis=axis, largest=largest, constants=(1,))


def test_top_k_of_old_opsets():
    x = normal(1, 5, 30)
    check("TopK", [x], outputs=2, opset=9, k=4)
    check("TopK", [x, np.array([4])], outputs=2, opset=10)


def test_top_k_of_a_long_row():
    check("TopK", [normal(1, 1, 5000), np.array([300])], outputs=2)


def test_top_k_of_halves():
    check("TopK", [normal(1, 4, 9).astype(np.float16), np.array([3])], outputs=2)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (0, 3)])
def test_non_zero(shape):
    check("NonZero", [np.asarray(RNG.integers(0, 2, shape))])
    check("NonZero", [np.asarray(RNG.integers(0, 2, shape)).astype(bool)], constants=(0,))


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_non_zero_of_a_scalar_has_no_rows(value):
    """As ONNX says, and unlike onnxruntime, which gives a row."""
    (got,) = run_ours("NonZero", [np.array(value, np.float32)])
    assert got.shape == (0, int(value != 0))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_compress(axis, constants):
    condition = np.array([True, False, True])
    extra = {} if axis is None else {"axis": axis}
    check("Compress", [normal(1, 4, 5), condition], constants=constants, **extra)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_unique(axis, in_order, dtype):
    x = RNG.integers(0, 3, (6, 2)).astype(dtype)
    extra = {} if axis is None else {"axis": axis}
    check("Unique", [x], outputs=4, sorted=in_order, **extra)


@pytest.mark.parametrize("k", [-1, 7])
def test_top_k_of_too_many(k):
    with pytest.raises(CompileError, match=f"wants {k} of 6 elements"):
        run_ours("TopK", [normal(1, 3, 6), np.array([k])], outputs=2, constants=(1,))


def test_compress_beyond_the_end():
    condition = np.array([True, False, True])
    with pytest.raises(CompileError, match="elements 0 to 2 of 2 along axis 0"):
        run_ours("Compress", [normal(1, 2, 3), condition], axis=0, constants=(1,))
