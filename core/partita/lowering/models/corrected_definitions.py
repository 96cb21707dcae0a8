"""ONNX's function definitions of operators, corrected where they are wrong or lack types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from partita.lowering.graph import Node

if TYPE_CHECKING:
    import onnx

_EPSILON = 1e-9
"""What MeanVarianceNormalization adds to the deviation."""

_OPSET = 18
"""Of the operators of definitions made here."""


def holds(node: Node) -> bool:
    """Whether ONNX's definition computes what the operator does, for inputs of these types.

    That of Attention multiplies tensors of two types where the values have another one than the
    queries, and masks of integers by an infinity of their type. That of CenterCropPad joins its
    sizes, whichever their type, with others of int64.
    """
    kinds = [None if value is None else value.dtype for value in node.inputs]
    if node.kind == "Attention":
        tensors = {kind for at, kind in enumerate(kinds[:6]) if kind is not None and at != _MASK}
        mask = kinds[_MASK] if len(kinds) > _MASK else None
        return len(tensors) == 1 and (mask is None or np.dtype(mask).kind not in "iu")
    return node.kind != "CenterCropPad" or kinds[1] == np.int64


_MASK = 3
"""Which input of Attention is its mask."""


def corrected(node: Node, function: onnx.FunctionProto) -> onnx.FunctionProto:
    """A definition by ONNX, or another one where that is wrong."""
    correction = _CORRECTIONS.get(node.kind)
    return function if correction is None else correction(node, function)


def _dynamic_quantization(_: Node, function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Numbers that are all 0 have scale 1: ONNX's definition divides by 0 there."""
    from onnx import helper

    nodes = list(function.node)
    at = next(n for n, node in enumerate(nodes) if list(node.output) == ["Scale"])
    nodes[at].output[:] = ["Quotient"]
    nodes[at + 1 : at + 1] = [
        helper.make_node("Constant", [], ["One"], value_float=1.0),
        helper.make_node("Equal", ["Quotient", "Q_Min"], ["IsFlat"]),  # which is 0
        helper.make_node("Where", ["IsFlat", "One", "Quotient"], ["Scale"]),
    ]
    del function.node[:]
    function.node.extend(nodes)
    return function


def _mean_variance_normalization(node: Node, _: onnx.FunctionProto) -> onnx.FunctionProto:
    """The variance is the mean of squared distances; ONNX's subtracts large squares.

    Computed in float32, or in float64 if that is the input's type.
    """
    from onnx import helper, numpy_helper

    axes = node.attrs.get("axes", (0, 2, 3))
    x = node.inputs[0]
    wide = np.dtype(np.float64 if x is not None and x.dtype == np.float64 else np.float32)
    epsilon = numpy_helper.from_array(np.array(_EPSILON, wide))
    made = [
        helper.make_node("Constant", [], ["axes"], value_ints=[int(axis) for axis in axes]),
        helper.make_node("Constant", [], ["epsilon"], value=epsilon),
        helper.make_node("Cast", ["X"], ["x_wide"], to=helper.np_dtype_to_tensor_dtype(wide)),
        helper.make_node("ReduceMean", ["x_wide", "axes"], ["mean"]),
        helper.make_node("Sub", ["x_wide", "mean"], ["centered"]),
        helper.make_node("Mul", ["centered", "centered"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["variance"]),
        helper.make_node("Sqrt", ["variance"], ["deviation"]),
        helper.make_node("Add", ["deviation", "epsilon"], ["divisor"]),
        helper.make_node("Div", ["centered", "divisor"], ["y_wide"]),
        helper.make_node("CastLike", ["y_wide", "X"], ["Y"]),
    ]
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_function(node.domain, node.op_type, ["X"], ["Y"], made, opsets)


def _attention(_: Node, function: onnx.FunctionProto) -> onnx.FunctionProto:
    """A query whose scores are all -inf attends to nothing, whatever made them so.

    ONNX's definition says so of what masks close alone, beside its reference, which says it of all.
    """
    from onnx import helper

    for part in function.node:
        if part.op_type == "Softmax":
            part.attribute.append(helper.make_attribute("closed_is_zero", 1))
    return function


_CORRECTIONS: dict[str, Callable[[Node, onnx.FunctionProto], onnx.FunctionProto]] = {
    "Attention": _attention,
    "DynamicQuantizeLinear": _dynamic_quantization,
    "MeanVarianceNormalization": _mean_variance_normalization,
}
