"""Pools, reductions, extremes and softmax of device OPENCL against onnxruntime."""

from dataclasses import replace

import numpy as np
import pytest

from partita_opencl.device.device import find_device
from partita_opencl.launches.work_sizes import Tuning
from partita_opencl.properties import Tiling

from ..comparison import check_single, compiled, floats, int64s, integers, single

POOLS = [
    ((1, 3, 9, 11), {"kernel_shape": [3, 3]}),
    ((2, 3, 9, 11), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ((1, 3, 10, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 10, 9), {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1}),
    ((1, 3, 9, 11), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 9, 11), {"kernel_shape": [4, 4], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 12), {"kernel_shape": [3], "pads": [1, 1]}),
    ((1, 2, 6, 7, 8), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("shape", "attrs"), POOLS)
def test_pools(op_type, shape, attrs):
    check_single(op_type, [floats(*shape)], attrs)


def test_max_pool_with_dilations():
    attrs = {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [1, 1, 1, 1]}
    check_single("MaxPool", [floats(1, 3, 12, 12)], attrs)


@pytest.mark.parametrize("case", [1, 2, 4])
def test_average_pool_that_counts_padding(case):
    shape, attrs = POOLS[case]
    check_single("AveragePool", [floats(*shape)], {**attrs, "count_include_pad": 1}, opset=19)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 5, 7, 9), (1, 3, 100)])
def test_global_pools(op_type, shape):
    check_single(op_type, [floats(*shape)])


REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]
AXES = [(0,), (2,), (-1, 1), (0, 2), (0, 1, 2), (1,)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("axes", AXES)
def test_reductions(op_type, axes):
    check_single(op_type, [floats(3, 4, 5), int64s(*axes)], {"keepdims": 0}, constant=(1,))


def test_log_sum():
    check_single("ReduceLogSum", [np.abs(floats(3, 4, 5)), int64s(1)], constant=(1,))


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMax", "ReduceMean"])
def test_reductions_with_axes_by_attribute(op_type):
    opset = 12 if op_type == "ReduceSum" else 13
    check_single(op_type, [floats(3, 4, 5)], {"axes": [0, -1]}, opset=opset)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("attrs", [{}, {"noop_with_empty_axes": 1}])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceL1"])
def test_reductions_without_axes(op_type, attrs):
    check_single(op_type, [floats(3, 4, 5)], attrs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_reductions_on_integers(op_type, dtype):
    check_single(op_type, [integers(3, 6, 2, dtype=dtype), int64s(1)], constant=(1,))


@pytest.mark.parametrize("axis", [0, 1])
def test_long_reductions_go_in_two_passes(axis):
    shape = (9001, 3) if axis == 0 else (3, 9001)
    inputs = [floats(*shape), int64s(axis)]
    check_single("ReduceMean", inputs, constant=(1,))
    check_single("ReduceMax", inputs, constant=(1,))


def test_reductions_keep_nan():
    x = floats(4, 50)
    x[1, 7] = np.nan
    model, feeds = single("ReduceMax", [x, int64s(1)], constant=(1,))
    found = compiled(model).infer_new_request(feeds)[0]
    np.testing.assert_array_equal(found, x.max(axis=1, keepdims=True))


def test_reduction_of_nothing():
    check_single("ReduceSum", [floats(3, 0), int64s(1)], constant=(1,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_of_extremes(op_type, axis, last):
    x = integers(4, 50, 3, low=-3, high=3, dtype=np.int32)
    attrs = {"axis": axis, "select_last_index": last, "keepdims": axis % 2}
    check_single(op_type, [x], attrs)


def test_argmax_on_floats():
    check_single("ArgMax", [floats(6, 999)], {"axis": -1})


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_of_extremes_beside_nan(op_type, axis, last):
    """A NaN between others hid the extreme of those that other work items had compared."""
    x = floats(40, 40)
    x[:, 1::5] = x[3::7] = np.nan
    x[0, :3], x[:3, 0] = [1, np.nan, 2], [1, np.nan, 2]
    attrs = {"axis": axis, "select_last_index": last, "keepdims": 0}
    model, feeds = single(op_type, [x], attrs)
    found = compiled(model).infer_new_request(feeds)[0]
    sign = 1 if op_type == "ArgMax" else -1
    due = []
    for row in sign * (x if axis else x.T):
        at = 0
        for place, number in enumerate(row):
            at = place if number > row[at] or (last and number == row[at]) else at
        due.append(at)
    np.testing.assert_array_equal(found, due)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax(op_type, axis, opset):
    check_single(op_type, [floats(3, 70, 5) * 10], {"axis": axis}, opset=opset)


def test_softmax_of_long_rows():
    check_single("Softmax", [floats(3, 5000)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "op_type", ["Softmax", "LogSoftmax", "ReduceL2", "ReduceMax", "ReduceMean"]
)
@pytest.mark.parametrize("shape", [(3, 700, 19), (2, 4500, 2), (1, 130, 40)])
def test_items_share_long_columns(op_type, shape):
    attrs = {"axis": 1} if "Softmax" in op_type else {"axes": [1]}
    x = floats(*shape)
    if op_type != "ReduceMax":  # of which onnxruntime forgets NaN
        x[0, 5, 1] = np.nan
    check_single(op_type, [x], attrs, opset=13)


def test_few_columns_are_shared_and_many_are_not():
    limits = replace(
        find_device("").limits, compute_units=132, group_items=1024, item_sizes=(1024, 1024, 64)
    )
    tuning = Tuning.of(limits, Tiling.LOCAL)
    assert tuning.columns_of_group(64, 8, 3137) == (8, 128)
    assert tuning.columns_of_group(384, 384, 3136) == (16, 64)
    assert tuning.columns_of_group(384, 384, 20) == (16, 4)
    assert tuning.columns_of_group(1 << 20, 1 << 20, 3136) == (256, 1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("include", [0, 1])
def test_windows_much_larger_than_the_image(op_type, include):
    """SAME windows of 2**31 - 1 see all of a small image; means count what the padding is."""
    x = floats(1, 2, 4, 5)
    attrs = {"auto_pad": "SAME_UPPER"}
    if op_type == "AveragePool":
        attrs["count_include_pad"] = include
    results = []
    for size in (9, 2**31 - 1):
        model, feeds = single(op_type, [x], {"kernel_shape": [size, size], **attrs}, opset=22)
        results.append(np.array(compiled(model)(feeds)[0]))
    if op_type == "AveragePool" and include:  # of 2**62 places rather than 81
        results[1] *= (2.0**31 - 1) ** 2 / 81
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)
