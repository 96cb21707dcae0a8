"""Models with one scalar constant, or two in a row, which compilers like to simplify."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance.inputs.models import Array, Sample

_FLOATS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 3.0, 1e30, np.inf, -np.inf, np.nan)
_WHOLE = (0, 1, -1, 2, -2, 3, 2**62)
_OPS = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")
_COUNT = 12
_BEFORE, _BEHIND = 0, 1

_ROWS: Mapping[str, tuple[type, Sequence[tuple[str, float, str, float]]]] = {
    "numbers in a row": (
        np.float32,
        (
            ("Add", 1e8, "Sub", 1e8),
            ("Add", 3e38, "Add", 3e38),
            ("Sub", 2.0**25, "Add", 2.0**25),
            ("Mul", 1e30, "Mul", 1e-30),
            ("Mul", 1e-30, "Mul", 1e30),
            ("Mul", 1e30, "Div", 1e30),
            ("Div", 1e-38, "Mul", 1e-38),
            ("Mul", 0.0, "Add", 1.0),
            ("Add", 1.0, "Mul", 0.0),
            ("Pow", 2.0, "Pow", 0.5),
            ("Pow", 0.5, "Pow", 2.0),
            ("Max", 1.0, "Min", -1.0),
            ("Min", -1.0, "Max", 1.0),
        ),
    ),
    "whole numbers in a row": (
        np.int64,
        (
            ("Div", 3, "Mul", 3),
            ("Mul", 3, "Div", 3),
            ("Mul", 2**62, "Div", 2**62),
            ("Div", -2, "Mul", -2),
            ("Div", 2, "Div", 2),
            ("Mul", 2, "Div", 4),
            ("Add", 1, "Div", 2),
            ("Sub", 2**62, "Sub", 2**62),
            ("Max", 3, "Min", -3),
        ),
    ),
    "bytes in a row": (
        np.uint8,
        (
            ("Div", 3, "Mul", 3),
            ("Sub", 7, "Add", 7),
            ("Mul", 16, "Div", 16),
            ("Add", 250, "Div", 2),
        ),
    ),
}
"""Names of models to the type, and operations on it, each with the number behind the value."""


def numbers() -> Iterator[Sample]:
    """The models: operations on special numbers beside each other, and some in a row."""
    for op in _OPS:
        values: Sequence[float] = [v for v in _FLOATS if op not in _ORDERED or not np.isnan(v)]
        yield Sample(f"{op} of a number", _beside(op, np.float32, values))
        whole = [n for n in _WHOLE if op not in _POWERS or 0 < n < 4]
        if op not in _POWERS:
            yield Sample(f"{op} of a whole number", _beside(op, np.int64, whole))
    for name, (dtype, rows) in _ROWS.items():
        yield Sample(name, _in_rows(dtype, rows))


_ORDERED = ("Max", "Min")
"""Operators of which libraries disagree what they make of what is no number."""
_POWERS = ("Pow",)


def _beside(op: str, dtype: type, values: Sequence[float]) -> onnx.ModelProto:
    """Each number behind the input and before it, without dimensions and as long as the input."""
    nodes, weights = [], []
    for number, value in enumerate(values):
        for shape in ((), (_COUNT,)):
            name = f"c{number}_{len(shape)}"
            weights.append(numpy_helper.from_array(np.full(shape, value, dtype), name))
            for side in (_BEFORE, _BEHIND):
                if side == _BEHIND and op == "Div" and dtype is np.int64 and value == 0:
                    continue
                if side == _BEFORE and op == "Div" and dtype is np.int64:
                    continue  # elements of the input are zero
                pair = ["x", name] if side == _BEHIND else [name, "x"]
                nodes.append(helper.make_node(op, pair, [f"y{name}_{side}"]))
    return _model(nodes, [node.output[0] for node in nodes], weights, dtype)


def _in_rows(dtype: type, rows: Sequence[tuple[str, float, str, float]]) -> onnx.ModelProto:
    nodes = []
    weights: dict[str, Array] = {}
    for number, (first, one, second, other) in enumerate(rows):
        for value in (one, other):
            weights[f"c{value}"] = np.array(value, dtype)
        nodes.append(helper.make_node(first, ["x", f"c{one}"], [f"a{number}"]))
        nodes.append(helper.make_node(second, [f"a{number}", f"c{other}"], [f"y{number}"]))
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return _model(nodes, [f"y{number}" for number in range(len(rows))], tensors, dtype)


def _model(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    weights: Sequence[onnx.TensorProto],
    dtype: type,
) -> onnx.ModelProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = helper.make_tensor_value_info("x", element, [_COUNT])
    made = [helper.make_tensor_value_info(name, element, [_COUNT]) for name in outputs]
    graph = helper.make_graph(nodes, "numbers", [x], made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
