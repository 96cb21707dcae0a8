"""Which operation is named where one of a model does not fit what it reads, and how."""

from __future__ import annotations

import numpy as np
import pytest

import partita
from partita.errors import OperandError

from .graphs import model_of, node

W = np.ones((3, 4), np.float32)

LISTS = "HETERO:CPU", "HETERO:OPENCL,CPU", "AUTO:OPENCL,CPU", "MULTI:OPENCL,CPU"

FAULTY = {
    "ReduceMean": node("ReduceMean", ["x"], "t", axes=[5]),
    "Concat": node("Concat", ["x", "x"], "t", axis=4),
    "MatMul": node("MatMul", ["x", "x"], "t"),
    "Gemm": node("Gemm", ["w", "w"], "t"),
}


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE", *LISTS])
@pytest.mark.parametrize("op_type", FAULTY)
def test_the_faulty_operation_is_named_and_not_those_behind_it(op_type, device):
    """Nothing tells the type of what it computes, nor of what others compute of that."""
    behind = [
        node("Relu", ["t"], "relu"),
        node("MatMul", ["relu", "w"], "product"),
        node("Add", ["product", "product"], "y"),
    ]
    proto = model_of([FAULTY[op_type], *behind], ["y"], initializers=[("w", W)])
    with pytest.raises(OperandError, match=rf"'t' \({op_type}\)"):
        partita.Core().compile_model(proto, device)


def test_a_strict_placement_names_it_as_well():
    proto = model_of([FAULTY["ReduceMean"], node("Relu", ["t"], "y")], ["y"])
    with pytest.raises(OperandError, match=r"Device 'CPU' claimed 2 .*'t' \(ReduceMean\)"):
        partita.Core().compile_model(proto, "HETERO:CPU", {"STRICT": True})
