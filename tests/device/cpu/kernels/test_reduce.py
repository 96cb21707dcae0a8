"""Reductions, positions of extremes and cumulative sums, against onnxruntime and float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from single_op import assert_same, check, normal, run_ours

from partita.errors import CompileError

REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
]
FLOAT64 = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceSumSquare": lambda x, axis, keepdims: np.sum(x * x, axis=axis, keepdims=keepdims),
    "ReduceLogSumExp": lambda x, axis, keepdims: np.log(
        np.sum(np.exp(x), axis=axis, keepdims=keepdims)
    ),
}


def axes_of(*axes: int) -> np.ndarray:
    return np.array(axes, np.int64)


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("axes", [(1,), (-1,), (0, 2), (0, 1, 2, 3), (1, 3), (2, 3)])
def test_axes(op_type, axes):
    x = np.abs(normal(1, 3, 4, 5, 7)) + np.float32(0.1)
    for keepdims in (0, 1):
        check(
            op_type,
            [x, axes_of(*axes)],
            constants=[1],
            opset=18,
            keepdims=keepdims,
            rtol=3e-6,
            atol=1e-6,
        )


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3, 1, 5), (2, 17)])
def test_no_axis_leaves_the_other_steps(op_type, shape):
    x = normal(2, *shape)
    x = np.abs(x) + np.float32(0.1) if op_type == "ReduceLogSum" else x
    check(op_type, [x], opset=18, noop_with_empty_axes=1, rtol=3e-6, atol=1e-6)


@examples(40)
@given(
    shape=st.lists(st.integers(1, 6), min_size=0, max_size=6),
    chosen=st.sets(st.integers(0, 5)),
    op_type=st.sampled_from(sorted(FLOAT64)),
)
def test_any_shape_and_axes(shape, chosen, op_type):
    axes = tuple(sorted(axis for axis in chosen if axis < len(shape)))
    x = normal(2, *shape)
    (y,) = run_ours(op_type, [x, axes_of(*axes)], constants=[1], opset=18)
    over = axes or tuple(range(len(shape)))
    expected = FLOAT64[op_type](x.astype(np.float64), axis=over, keepdims=True)
    assert_same(y, np.asarray(expected, np.float32), 2e-6, 2e-6)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_axes_as_attribute_or_input(opset):
    x = normal(3, 4, 5, 6)
    check("ReduceMax", [x], opset=11, axes=[1], keepdims=0)
    if opset >= 13:
        check("ReduceSum", [x, axes_of(0, 2)], opset=opset)
    else:
        check("ReduceSum", [x], opset=opset, axes=[0, -1], rtol=1e-6)


def test_no_axes_reduce_all_or_nothing():
    x = normal(4, 3, 4)
    check("ReduceSum", [x], opset=13, rtol=1e-6)
    check("ReduceSum", [x, axes_of()], opset=13, constants=[1], rtol=1e-6)
    check("ReduceSum", [x, axes_of()], opset=13, constants=[1], noop_with_empty_axes=1)


@pytest.mark.parametrize(
    "op_type", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"]
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers(op_type, dtype):
    x = normal(5, 4, 5, 6, dtype=dtype)
    for axes in ((1,), (2,), (0, 1, 2)):
        check(op_type, [x, axes_of(*axes)], opset=18)


def test_a_mean_of_unsigned_integers_is_not_negative():
    """A sum of 2**63 or more was divided as an integer with a sign."""
    x = np.array([[(1 << 63) + 7, 5, 3], [0, (1 << 62) - 1, (1 << 63) - 1]], np.uint64)
    (found,) = run_ours("ReduceMean", [x, axes_of(1)], opset=18)
    due = [[sum(map(int, row)) // 3] for row in x]
    np.testing.assert_array_equal(found, np.array(due, np.uint64))


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_])
def test_extremes_of_bytes(op_type, dtype):
    x = normal(6, 3, 9, dtype=np.int32).astype(dtype)
    (y,) = run_ours(op_type, [x, axes_of(1)], opset=20)
    reference = np.max if op_type == "ReduceMax" else np.min
    np.testing.assert_array_equal(y, reference(x, axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceL2", 0),
        ("ReduceLogSumExp", -np.inf),
    ],
)
def test_of_nothing(op_type, expected):
    x = np.zeros((2, 0, 3), np.float32)
    (y,) = run_ours(op_type, [x, axes_of(1)], opset=20)
    np.testing.assert_array_equal(y, np.full((2, 1, 3), expected, np.float32))


@pytest.mark.parametrize("shape", [(1_000_003,), (3, 400_001), (400_001, 3)])
def test_long_sums_are_right(shape):
    x = np.random.default_rng(7).uniform(0, 1, shape).astype(np.float32)
    axis = int(np.argmax(shape))
    (y,) = run_ours("ReduceSum", [x, axes_of(axis)], constants=[1], opset=13, keepdims=0)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(axis), rtol=3e-7)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceSumSquare", "ReduceL1"])
@pytest.mark.parametrize("shape", [(2, 77), (3, 2, 5, 31), (2, 2, 1)])
def test_two_rows_are_added_up_as_float32_has_it(op_type, shape):
    x, axis = normal(5, *shape), 0 if len(shape) == 2 else 1
    x.reshape(-1)[:4] = -0.0, np.inf, np.nan, 3e38
    (y,) = run_ours(op_type, [x, axes_of(axis)], opset=18, keepdims=0)
    with np.errstate(over="ignore"):
        terms = {"ReduceSum": x, "ReduceSumSquare": x * x, "ReduceL1": abs(x)}[op_type]
        one, other = np.moveaxis(terms, axis, 0)
        np.testing.assert_array_equal(y, one + other)


def test_log_sum_exp_does_not_overflow():
    x = np.array([[1000, 1000.5], [-np.inf, -np.inf], [-1000, -1001], [np.inf, 1]], np.float32)
    for axes, rows in ((1, x), (0, np.ascontiguousarray(x.T))):
        (y,) = run_ours("ReduceLogSumExp", [rows, axes_of(axes)], opset=18, keepdims=0)
        expected = [1000.5 + np.log1p(np.exp(-0.5)), -np.inf, -1000 + np.log1p(np.exp(-1)), np.inf]
        np.testing.assert_allclose(y, np.float32(expected), rtol=1e-6)


def test_extremes_keep_nan():
    x = normal(8, 5, 40)
    x[2, 7] = np.nan
    for axis in (0, 1):
        (y,) = run_ours("ReduceMax", [x, axes_of(axis)], opset=18, keepdims=0)
        np.testing.assert_array_equal(y, np.max(x, axis))


def test_an_axis_that_does_not_exist():
    with pytest.raises(CompileError, match="axis 3, but its tensor has 2 dimensions"):
        run_ours("ReduceSum", [normal(1, 2, 3), axes_of(3)], constants=[1], opset=13)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("last", [0, 1])
def test_positions(op_type, axis, last):
    x = normal(9, 4, 5, 70, dtype=np.int32)
    for dtype in (np.float32, np.int32):
        for keepdims in (0, 1):
            check(
                op_type,
                [x.astype(dtype)],
                axis=axis,
                keepdims=keepdims,
                select_last_index=last,
                opset=13,
            )


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative_sum(axis, exclusive, reverse):
    for dtype in (np.float32, np.int64):
        x = normal(10, 4, 5, 70, dtype=dtype)
        check(
            "CumSum",
            [x, np.array(axis, np.int32)],
            constants=[1],
            exclusive=exclusive,
            reverse=reverse,
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 3, 16, 33, 130])
def test_extremes_of_rows_of_any_length(op_type, dtype, size):
    """NaN of either sign wins; of zeros the one that is larger, or smaller, by its sign."""
    x = np.random.default_rng(size).standard_normal((9, size)).astype(dtype)
    x[1, size // 2], x[2, size // 2] = np.nan, -np.float64(np.nan)
    x[3, -1], x[4, 0] = np.inf, -np.inf
    x[5:7] = -0.0
    x[6, size // 3] = 0.0
    (got,) = run_ours(op_type, [x, np.array([1])], constants=(1,), opset=18, keepdims=0)
    wanted = getattr(x, "max" if op_type == "ReduceMax" else "min")(1)
    np.testing.assert_array_equal(got, wanted)
    above = op_type == "ReduceMax" or size == 1
    assert list(np.signbit(got[5:7])) == [True, not above]
