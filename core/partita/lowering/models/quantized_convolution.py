"""QLinearConv as QuantizeLinear, Conv and DequantizeLinear, for back-ends without a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.lowering.graph import Node

if TYPE_CHECKING:
    import onnx

    from partita.lowering.graph import Value

_OPSET = 13
"""Of the definition's operators: the first with scales along an axis."""


def quantized_definition(node: Node) -> onnx.FunctionProto | None:
    """The definition of a QLinearConv; ``None`` for any other node.

    The convolution is one of the numbers that levels stand for, so that a result that lies in the
    middle of two levels may become either.
    """
    from onnx import helper

    if node.kind != "QLinearConv":
        return None
    names = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "bias"]
    names = names[: sum(value is not None for value in node.inputs)]
    made = [helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["numbers"])]
    scale, zero = "w_scale", "w_zero"
    if not _alike(node.inputs[4], node.inputs[5]):
        for name, other in ((scale, zero), (zero, scale)):
            made.append(helper.make_node("Shape", [other], [f"{other}_shape"]))
            made.append(helper.make_node("Expand", [name, f"{other}_shape"], [f"{name}_of_each"]))
        scale, zero = f"{scale}_of_each", f"{zero}_of_each"
    made.append(helper.make_node("DequantizeLinear", ["w", scale, zero], ["weights"], axis=0))
    factors = ["numbers", "weights"]
    if "bias" in names:
        made += [
            helper.make_node("Mul", ["x_scale", "w_scale"], ["sum_scale"]),
            helper.make_node("DequantizeLinear", ["bias", "sum_scale"], ["added"], axis=0),
        ]
        factors.append("added")
    made += [
        helper.make_node("Conv", factors, ["sums"], **node.attrs),
        helper.make_node("QuantizeLinear", ["sums", "y_scale", "y_zero"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_function(node.domain, node.op_type, names, ["y"], made, opsets)


def _alike(scale: Value | None, zero: Value | None) -> bool:
    """Whether both are for all outputs, or both have an element for each, as a DequantizeLinear."""
    return (
        scale is not None
        and zero is not None
        and zero.shape is not None
        and scale.shape == zero.shape
    )
