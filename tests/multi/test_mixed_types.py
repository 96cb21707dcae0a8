"""Files of which a part was converted to float16: no device takes what mixes types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper

import partita

X = np.arange(6, dtype=np.float32).reshape(2, 3)
CASES = {
    "Where": lambda other: [X > 2, X, X.astype(other)],
    "Concat": lambda other: [X, X.astype(other)],
    "Pad": lambda other: [X, np.array([0, 0, 1, 1]), X[0, :1].reshape(()).astype(other)],
    "ScatterElements": lambda other: [X, np.array([[0, 1, 1]]), X[:1].astype(other)],
    "ScatterND": lambda other: [X, np.array([[1]]), X[:1].astype(other)],
    "Gemm": lambda other: [X, X.T.astype(other), X[:, :2].astype(other)],
    "Max": lambda other: [X, X, X.astype(other)],
}
"""Inputs of which the last, or the last two, are of another type."""


def model_of(op_type, arrays):
    names = [f"x{number}" for number in range(len(arrays))]
    attributes = {"axis": 0} if op_type == "Concat" else {}
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], name="mixed", **attributes)],
        "mixed",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, arrays, strict=True)
        ],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model.SerializeToString(), dict(zip(names, arrays, strict=True))


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
@pytest.mark.parametrize("other", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op_type", list(CASES))
def test_mixed_types_are_refused(op_type, other, device):
    """Kernels that copy elements would read beyond the narrower ones."""
    model, _ = model_of(op_type, CASES[op_type](np.dtype(other)))
    with pytest.raises(Exception, match="Type parameter"):  # its classes are not public
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with pytest.raises(
        partita.errors.UnsupportedOpError, match="; expected one type, as by a Cast"
    ):
        partita.Core().compile_model(model, device)


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
@pytest.mark.parametrize("op_type", list(CASES))
def test_one_type_is_taken(op_type, device):
    model, feeds = model_of(op_type, CASES[op_type](np.dtype(np.float32)))
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    found = partita.Core().compile_model(model, device)(feeds)[0]
    np.testing.assert_allclose(found, session.run(None, feeds)[0])
