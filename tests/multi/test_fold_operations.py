"""Products and windows over constants that would keep compiling busy: the run computes them."""

import itertools

import numpy as np
import pytest
from onnx import helper, numpy_helper

import partita
from partita.lowering.shapes import fold_allowance

RNG = np.random.default_rng(5)


def model_of(op_type, arrays, attrs):
    """``y = x + op(constants)``."""
    names = [f"w{n}" for n in range(len(arrays))]
    nodes = [
        helper.make_node(op_type, names, ["t"], **attrs),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", 1, [1])
    y = helper.make_tensor_value_info("y", 1, None)
    weights = [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def windows(x, side):
    return np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (side, side), (2, 3))


def product():
    a, b = floats(20, 30), floats(30, 10)
    return [a, b], {}, a.astype(np.float64) @ b


def convolution():
    x, w = floats(1, 1, 12, 12), floats(1, 1, 5, 5)
    return [x, w], {}, (windows(x, 5) * w[0, 0]).sum((-2, -1))


def pool():
    x = floats(1, 3, 12, 12)
    return [x], {"kernel_shape": [5, 5]}, windows(x, 5).mean((-2, -1))


CASES = {"MatMul": product, "Conv": convolution, "AveragePool": pool}


def computes_it(compiled, op_type):
    """Whether the program has a step for an operator."""
    program = compiled.device_model.specializer.program([((1,), np.dtype(np.float32))], None)
    kinds = {op.op_type: op.exec_type for op in program.ops}
    return kinds.get(op_type, "constant") != "constant"


def check(device, op_type, is_folded):
    arrays, attrs, wanted = CASES[op_type]()
    compiled = partita.Core().compile_model(model_of(op_type, arrays, attrs), device)
    assert computes_it(compiled, op_type) != is_folded
    (y,) = compiled({"x": np.ones(1, np.float32)}).to_tuple()
    np.testing.assert_allclose(y, wanted + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
@pytest.mark.parametrize("op_type", CASES)
def test_too_many_operations_are_left_to_the_run(device, op_type, monkeypatch):
    monkeypatch.setattr(fold_allowance, "FLOOR_OPERATIONS", 0)
    monkeypatch.setattr(fold_allowance, "OPERATIONS_PER_WEIGHT_BYTE", 0)
    check(device, op_type, is_folded=False)


@pytest.mark.parametrize(
    ("device", "op_type"), [*(("CPU", op_type) for op_type in CASES), ("OPENCL", "MatMul")]
)
def test_few_operations_are_folded(device, op_type):
    check(device, op_type, is_folded=True)


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU"])
def test_a_chain_of_products_of_minutes_is_left_to_the_run(device):
    """Of a model of some kilobytes: each of the products takes 2**33 multiplications."""
    names = [f"t{n}" for n in range(300)]
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["t0"])]
    pairs = itertools.pairwise(names)
    nodes += [helper.make_node("MatMul", [a, a], [b]) for a, b in pairs]
    nodes += [helper.make_node("Add", ["x", names[-1]], ["y"])]
    x = helper.make_tensor_value_info("x", 1, [1])
    y = helper.make_tensor_value_info("y", 1, [2048, 2048])
    weights = [numpy_helper.from_array(np.array([2048, 2048]), "s")]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    compiled = partita.Core().compile_model(model, device)
    if device == "CPU":
        assert computes_it(compiled, "MatMul")
