"""Small ONNX models for tests, built anew for each caller so that nobody sees another's edits."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def value(name, shape, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op_type, inputs, outputs, name="", **attributes):
    outputs = [outputs] if isinstance(outputs, str) else outputs
    return helper.make_node(op_type, inputs, outputs, name=name, **attributes)


def weight(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def model_of(nodes, inputs, outputs, weights=(), opset=17, ir_version=8, name="m", **graph):
    """A model; inputs and outputs are names (float, of any shape) or value infos."""
    inputs = [value(i, None) if isinstance(i, str) else i for i in inputs]
    outputs = [value(o, None) if isinstance(o, str) else o for o in outputs]
    return helper.make_model(
        helper.make_graph(nodes, name, inputs, outputs, list(weights), **graph),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=ir_version,
    )


def neg(shape=(2, 3), dtype=FLOAT):
    """y = -x"""
    return model_of([node("Neg", ["x"], "y", "neg")], [value("x", shape, dtype)], ["y"])


def add_sub(shape=(2, 3)):
    """sum = a + b and difference = a - b"""
    return model_of(
        [node("Add", ["a", "b"], "sum", "add"), node("Sub", ["a", "b"], "difference", "sub")],
        [value("a", shape), value("b", shape)],
        ["sum", "difference"],
    )


def affine():
    """y = Relu(x @ w + b), with the weights w and b."""
    return model_of(
        [
            node("MatMul", ["x", "w"], "product", "matmul"),
            node("Add", ["product", "b"], "biased", "bias"),
            node("Relu", ["biased"], "y", "relu"),
        ],
        [value("x", ["N", 4])],
        [value("y", ["N", 3])],
        [
            weight("w", np.arange(12, dtype=np.float32).reshape(4, 3) - 5),
            weight("b", np.array([1, -2, 3], np.float32)),
        ],
        name="affine",
    )


def lookup():
    """y = the rows of x at indices, and z added to them."""
    return model_of(
        [node("Gather", ["x", "indices"], "rows", "take"), node("Add", ["rows", "z"], "y", "add")],
        [
            value("x", ["rows", 2]),
            value("indices", ["count"], TensorProto.INT64),
            value("z", ["others", 2]),
        ],
        [value("y", ["sums", 2])],
    )


def if_with_capture():
    """y = x + 1 if flag else x * w, where both branches read x, and one of them w, from outside."""
    then = helper.make_graph(
        [node("Add", ["x", "one"], "sum")],
        "then",
        [],
        [value("sum", None)],
        [weight("one", np.float32(1))],
    )
    other = helper.make_graph(
        [node("Mul", ["x", "w"], "product")], "else", [], [value("product", None)]
    )
    return model_of(
        [node("If", ["flag"], "y", "choose", then_branch=then, else_branch=other)],
        [value("flag", [], TensorProto.BOOL), value("x", [2])],
        ["y"],
        [weight("w", np.array([3, 4], np.float32))],
    )
