"""Pooling over windows and channels against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from single_op import assert_same, check, normal, run_ours

from partita.errors import CompileError, InferError

WINDOWS = [
    ((1, 3, 9, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 2, 9, 8), {"kernel_shape": [3, 2], "pads": [2, 0, 0, 1]}),
    ((1, 2, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 3], "strides": [3, 3], "ceil_mode": 1, "pads": [1] * 4}),
    ((1, 2, 9, 8), {"kernel_shape": [3, 3], "dilations": [2, 3]}),
    ((1, 2, 9, 8), {"kernel_shape": [3, 4], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 9, 8), {"kernel_shape": [3, 4], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 9, 8), {"kernel_shape": [4, 4], "strides": [3, 3], "auto_pad": "VALID"}),
    ((2, 3, 17), {"kernel_shape": [5], "strides": [3], "pads": [2, 2]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 3], "strides": [1, 2, 2], "pads": [1, 0, 1] * 2}),
]


@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_max_pool(shape, attributes):
    check("MaxPool", [normal(1, *shape)], **attributes)


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_max_pool_with_places(shape, attributes, storage_order):
    check("MaxPool", [normal(1, *shape)], outputs=2, storage_order=storage_order, **attributes)


def test_first_of_equal_places():
    x = np.array([[[1, 2, 2, 0]]], np.float32)
    check("MaxPool", [x], outputs=2, kernel_shape=[3])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint8])
def test_max_pool_types(dtype):
    check("MaxPool", [normal(1, 1, 2, 9, 8, dtype=dtype)], kernel_shape=[3, 3], opset=12)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("opset", [11, 22])
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_average_pool(shape, attributes, opset, include):
    if opset >= 19 or "dilations" not in attributes:
        check(
            "AveragePool", [normal(1, *shape)], opset=opset, count_include_pad=include, **attributes
        )


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_lp_pool(shape, attributes, p):
    check("LpPool", [normal(1, *shape)], opset=18, p=p, **attributes)


@examples(30)
@given(st.data())
def test_any_window(data):
    draw = data.draw
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    shape = [draw(st.integers(1, 8)) + (k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    check(
        draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"])),
        [normal(1, 2, 2, *shape)],
        opset=22,
        kernel_shape=kernel,
        dilations=dilations,
        strides=[draw(st.integers(1, 3)) for _ in range(rank)],
        pads=[draw(st.integers(0, k - 1)) for k in kernel * 2],
        ceil_mode=draw(st.integers(0, 1)),
    )


@examples(40)
@given(
    op_type=st.sampled_from(["MaxPool", "AveragePool"]),
    channels=st.integers(1, 9),
    rows=st.integers(1, 20),
    columns=st.integers(1, 20),
    down=st.integers(0, 4),
    across=st.integers(0, 4),
    include=st.integers(0, 1),
    seed=st.integers(0, 99),
)
def test_windows_around_each_element(op_type, channels, rows, columns, down, across, include, seed):
    """Such are folded a plane at a time, and may be wider than it."""
    config = {"count_include_pad": include} if op_type == "AveragePool" else {}
    check(
        op_type,
        [normal(seed, 2, channels, rows, columns)],
        kernel_shape=[2 * down + 1, 2 * across + 1],
        pads=[down, across] * 2,
        **config,
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint8])
def test_types_of_windows_around_each_element(dtype):
    x = normal(1, 1, 9, 12, 13, dtype=dtype)
    check("MaxPool", [x], kernel_shape=[3, 5], pads=[1, 2] * 2, opset=12)


def test_a_window_hands_infinity_to_its_neighbours_alone():
    x = np.zeros((1, 8, 6, 7), np.float32)
    x[0, 3, 2, 6], x[0, 5, 5, 0] = np.inf, -np.inf
    for op_type in ("MaxPool", "AveragePool"):
        found = run_ours(op_type, [x], kernel_shape=[3, 3], pads=[1] * 4)[0]
        expected = np.zeros((8, 6, 7), bool)
        expected[3, 1:4, 5:] = True
        if op_type == "AveragePool":
            expected[5, 4:, :2] = True
        np.testing.assert_array_equal(np.isinf(found[0]), expected)


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (1, 4, 9), (1, 2, 3, 4, 5), (1, 3, 50, 50)])
def test_global_pool(op_type, shape):
    check(op_type, [normal(1, *shape)])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(p):
    check("GlobalLpPool", [normal(1, 2, 3, 7, 5)], p=p)


def test_global_average_pool_of_halves():
    x = normal(1, 2, 3, 7, 5).astype(np.float16)
    (y,) = run_ours("GlobalAveragePool", [x])
    expected = x.astype(np.float64).mean(axis=(2, 3), keepdims=True).astype(np.float16)
    assert_same(y, expected, 1e-3, 1e-3)


def test_max_unpool():
    places = np.array([[[[5, 7], [13, 15]]]], np.int64)
    check("MaxUnpool", [normal(1, 1, 1, 2, 2), places], kernel_shape=[2, 2], strides=[2, 2])


def test_max_unpool_to_a_given_shape():
    # The example of the ONNX specification: places count in the smallest output, 4 x 4.
    x = np.array([[[[5, 6], [7, 8]]]], np.float32)
    places, shape = np.array([[[[5, 7], [13, 15]]]]), np.array([1, 1, 5, 5])
    (y,) = run_ours("MaxUnpool", [x, places, shape], kernel_shape=[2, 2], strides=[2, 2])
    expected = np.zeros((1, 1, 5, 5), np.float32)
    expected[0, 0, [1, 1, 3, 3], [1, 3, 1, 3]] = [5, 6, 7, 8]
    np.testing.assert_array_equal(y, expected)


def test_places_outside_of_the_output():
    with pytest.raises(InferError, match="index 16 is out of range"):
        run_ours(
            "MaxUnpool",
            [normal(1, 1, 1, 1, 1), np.array([[[[16]]]])],
            kernel_shape=[4, 4],
        )


def test_too_many_dimensions():
    with pytest.raises(CompileError, match="3 to 5 are possible"):
        run_ours("MaxPool", [normal(1, 1, 1, 2, 2, 2, 2)], kernel_shape=[1, 1, 1, 1])
