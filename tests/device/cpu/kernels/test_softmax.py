"""Softmax, LogSoftmax and Hardmax against onnxruntime and float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from single_op import check, normal, run_ours

KINDS = ["Softmax", "LogSoftmax", "Hardmax"]


@pytest.mark.parametrize("op_type", KINDS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_one_axis(op_type, axis):
    check(op_type, [normal(1, 3, 70, 5) * 3], opset=13, axis=axis, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("op_type", KINDS)
@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_flattened_until_opset_12(op_type, axis):
    check(op_type, [normal(1, 3, 4, 5)], opset=11, axis=axis, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("op_type", KINDS)
def test_default_axis_of_either_opset(op_type):
    for opset in (11, 13):
        check(op_type, [normal(1, 3, 4, 5)], opset=opset, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("length", [1, 7, 128, 1000])
def test_rows_against_float64(length):
    x = normal(2, 9, length) * 5
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    (y,) = run_ours("Softmax", [x])
    np.testing.assert_allclose(y, wide / wide.sum(-1, keepdims=True), rtol=4e-6, atol=1e-37)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_large_masked_and_nan(op_type, axis):
    x = normal(3, 6, 6)
    x[0] += 1000
    x[1] -= 1000
    x[2, :3] = -np.inf
    x[3, 3] = np.nan
    x[4, 1] = -np.nan
    check(op_type, [x], axis=axis, rtol=2e-6, atol=2e-6)


def test_float64_and_halves():
    x = normal(4, 3, 20, dtype=np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    (y,) = run_ours("Softmax", [x])
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), rtol=1e-14)
    (y,) = run_ours("Softmax", [x.astype(ml_dtypes.bfloat16)])
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(y.astype(float), e / e.sum(-1, keepdims=True), rtol=2e-2)


def test_of_nothing():
    (y,) = run_ours("Softmax", [np.zeros((0, 4), np.float32)])
    assert y.shape == (0, 4)
