"""Operators that the reference evaluator had wrong, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import partita


def both(op_type, opset, arrays, output=TensorProto.FLOAT, **attributes):
    names = [f"i{index}" for index in range(len(arrays))]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **attributes)],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(names, arrays, strict=True)
        ],
        [helper.make_tensor_value_info("y", output, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = dict(zip(names, arrays, strict=True))
    found = partita.Core().compile_model(proto, "REFERENCE")(feeds)[0]
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)[0]
    return found, want


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_global_max_pool(shape):
    got, want = both("GlobalMaxPool", 13, [floats(*shape)])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization(opset):
    arrays = [floats(2, 3, 4, 5), floats(3), floats(3, seed=1), floats(3, seed=2)]
    arrays.append(np.abs(floats(3, seed=3)) + 0.1)
    got, want = both("BatchNormalization", opset, arrays, epsilon=1e-3)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size):
    x = floats(2, 7, 4, 5) * 10
    got, want = both("LRN", 13, [x], size=size, alpha=0.01, beta=0.6, bias=2.0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [9, 11, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_softmax_family(op_type, opset, axis):
    if opset == 9 and axis == -1:
        axis = 2  # negative axes came with opset 11
    attributes = {} if axis is None else {"axis": axis}
    got, want = both(op_type, opset, [floats(3, 4, 5)], **attributes)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [(), (1,)])
@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_suppression_takes_limits_that_are_scalars_or_left_out(dims, given):
    corners = np.abs(floats(1, 9, 2))
    boxes = np.concatenate([corners, corners + 1], axis=2)
    limits = [np.full(dims, 3, np.int64), *(np.full(dims, x, np.float32) for x in (0.4, 0.1))]
    arrays = [boxes, floats(1, 2, 9, seed=1), *limits[:given]]
    got, want = both("NonMaxSuppression", 11, arrays, TensorProto.INT64)
    np.testing.assert_array_equal(got, want)
    assert len(got) == 0 if given == 0 else len(got) > 1


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 4), (2, 2)])
def test_gather_elements(axis, shape):
    """Also where indices are fewer than the data beside the axis."""
    data = floats(3, 4)
    index = np.random.default_rng(1).integers(-shape[axis], shape[axis], shape)
    found, want = both("GatherElements", 13, [data, index], axis=axis)
    np.testing.assert_array_equal(found, want)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("far", [2**62, -(2**62), 3, -4])
def test_indices_out_of_range_are_refused_at_once(far):
    """The original subtracts the size from 2**62 until it fits."""
    with pytest.raises(partita.errors.InferError, match="allowed are -3 to 2"):
        both("GatherElements", 13, [floats(3, 4), np.full((3, 4), far)], axis=0)


def test_windows_that_would_take_forever_are_refused():
    graph = helper.make_graph(
        [helper.make_node("LpPool", ["x"], ["y"], "pool", kernel_shape=[2**31 - 1])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    refusals = partita.Core().query_model(proto, "REFERENCE").reasons
    assert "a window of 2147483647 elements; takes up to 65536" in str(refusals["pool"])
