"""Det against onnxruntime and numpy's float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from single_op import check, run_ours

from partita.errors import CompileError


@examples(60)
@given(
    st.lists(st.integers(1, 4), max_size=2), st.integers(1, 12), st.integers(0, 99), st.booleans()
)
def test_matrices_of_any_size(batch, n, seed, sparse):
    """Also singular ones, and ones whose pivots are not on the diagonal."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*batch, n, n))
    if sparse:
        x = np.round(x * (rng.random(x.shape) < 0.4), 1)
    (y,) = run_ours("Det", [x])
    np.testing.assert_allclose(y, np.linalg.det(x), rtol=1e-9, atol=1e-12)
    check("Det", [x.astype(np.float32)], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_types(dtype):
    x = np.array([[[0, 2], [3, 4]], [[1, 2], [2, 4]], [[1, 0.5], [-2, 3]]], dtype)
    (y,) = run_ours("Det", [x])
    np.testing.assert_array_equal(y, np.array([-6, 0, 4], dtype), strict=True)


def test_parts_of_the_product_that_overflow():
    x = np.diag([1e150] * 4 + [1e-150] * 4)
    np.testing.assert_allclose(
        run_ours(
            "Det",
            [
                x,
            ],
        )[0],
        1,
        rtol=1e-12,
    )
    np.testing.assert_allclose(run_ours("Det", [x[::-1].copy()])[0], 1, rtol=1e-12)
    assert run_ours("Det", [np.diag([1e200, -1e200])])[0] == -np.inf


def test_matrices_of_nothing_and_of_no_numbers():
    np.testing.assert_array_equal(run_ours("Det", [np.zeros((3, 0, 0))])[0], np.ones(3))
    assert run_ours("Det", [np.zeros((0, 2, 2))])[0].shape == (0,)
    x = np.array([[1, 2], [np.nan, 3]])
    assert np.isnan(run_ours("Det", [x])[0])


def test_other_shapes_are_refused():
    with pytest.raises(CompileError, match="must be equal, those of square matrices"):
        run_ours("Det", [np.zeros((2, 3))])
