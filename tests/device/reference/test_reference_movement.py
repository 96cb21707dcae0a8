"""Operators that move elements, in the cases that ONNX allows and ``onnx.reference`` leaves out."""

from __future__ import annotations

import numpy as np
import pytest
from test_corrections import both, floats

import partita
from partita.errors import InferError


def integers(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (3, 0), (2, 3, 4)])
@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_flatten_beside_sizes_of_zero(shape, axis):
    got, want = both("Flatten", 13, [floats(*shape)], axis=axis)
    np.testing.assert_array_equal(got, want)
    assert got.shape == want.shape


@pytest.mark.parametrize("axes", [[2, 0], [0, 2], [4, 0, 2], [1]])
@pytest.mark.parametrize("opset", [10, 11])
def test_axes_are_inserted_where_they_are_in_the_result(axes, opset):
    got, want = both("Unsqueeze", opset, [floats(3, 4)], axes=axes)
    np.testing.assert_array_equal(got, want)
    assert got.shape == want.shape


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [(-1, 0, 0, 1), (1, -2, -1, 0), (-1, -1, -1, -1), (2, 1, 0, 2)])
def test_pads_below_zero_take_elements_away(mode, pads):
    got, want = both("Pad", 13, [floats(4, 5), integers(*pads)], mode=mode)
    np.testing.assert_array_equal(got, want)


def test_pads_of_old_opsets_are_attributes():
    got, want = both("Pad", 10, [floats(4, 5)], pads=[-1, 2, 0, 1], value=1.5, mode="constant")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (-100, -200, -1),
        (-100, 100, 1),
        (100, -100, -1),
        (100, -100, -2),
        (3, -(2**63), -1),
        (0, 2**63 - 1, 2),
        (4, 1, -3),
        (2, 2, 1),
    ],
)
def test_slice_clamps_as_onnx_says(start, end, step):
    arrays = [floats(3, 6), integers(start), integers(end), integers(-1), integers(step)]
    got, want = both("Slice", 13, arrays)
    np.testing.assert_array_equal(got, want)


def test_slice_of_old_opsets_has_attributes():
    got, want = both("Slice", 9, [floats(3, 6)], starts=[1, -4], ends=[9, -1], axes=[0, 1])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements_of_fewer_indices_than_data(axis):
    indices = np.array([[0, -1, 1], [2, 0, -3]], np.int64)
    got, want = both("GatherElements", 13, [floats(3, 4), indices], axis=axis)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("index", [2**62, -(2**62), 3])
def test_gather_elements_refuses_what_is_not_there(index):
    with pytest.raises(InferError, match="allowed are"):
        both_but_reference(index)


def both_but_reference(index):
    """REFERENCE alone, as onnxruntime refuses such indices when it is asked first."""
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("GatherElements", ["x", "i"], ["y"])],
        "one",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [1, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    feeds = {"x": floats(3, 3), "i": np.array([[index]], np.int64)}
    return partita.Core().compile_model(proto, "REFERENCE")(feeds)


@pytest.mark.parametrize("given", [{}, {"sorted": 0}, {"axis": 1, "sorted": 0}, {"axis": 0}])
def test_unique_in_the_order_of_the_input(given):
    x = np.array([[3, 1, 3], [2, 1, 2], [3, 1, 3]], np.float32)
    got, want = both("Unique", 11, [x], **given)
    np.testing.assert_array_equal(got, want)
