"""Sums of whole numbers that are constants: numpy makes them wider, ONNX does not."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import partita


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("op_type", ["ReduceSumSquare", "ReduceL1", "ReduceSum", "ReduceProd"])
def test_sums_of_constants_have_their_type(device, shape, op_type):
    weights = numpy_helper.from_array(np.full(shape, 3, np.int32), "w")
    graph = helper.make_graph(
        [helper.make_node(op_type, ["w"], ["y"], keepdims=0)],
        "single",
        [],
        [helper.make_tensor_value_info("y", 6, [])],
        [weights],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    (want,) = onnxruntime.InferenceSession(model).run(None, {})
    (found,) = partita.Core().compile_model(model, device)({}).to_tuple()
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, want)
