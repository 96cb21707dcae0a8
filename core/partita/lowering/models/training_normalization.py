"""BatchNormalization in training mode by operators that all back-ends have.

Statistics are those of the input itself. Weights that a model normalizes as it runs (weight
standardization) are exported so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.lowering.graph import Node, Value

if TYPE_CHECKING:
    import onnx

_OPSET = 18
"""Of the definition's operators, whichever the model's are."""

_FIRST_VERSION = 14
"""Of the operator with attribute `training_mode`."""

_WIDE = (np.dtype(np.float32), np.dtype(np.float64))
"""What statistics are computed in; of other types they are in float32."""


def training_definition(node: Node) -> onnx.FunctionProto | None:
    """The definition of a BatchNormalization in training mode; ``None`` for any other node.

    Outputs are the normalized input and the running mean and variance: ``momentum`` of those that
    are given, and the rest of the input's own (the population's variance). ``None`` also where the
    input's rank or a type is not known.
    """
    from onnx import helper

    if node.kind != "BatchNormalization" or not node.attrs.get("training_mode", 0):
        return None
    given = [value for value in node.inputs if value is not None and value.dtype is not None]
    x = node.inputs[0]
    if node.version < _FIRST_VERSION or len(given) != 5 or x is None or x.shape is None:
        return None
    if len(x.shape) < 2:
        return None
    names = ["x", "scale", "bias", "mean", "variance"]
    outputs = ["y", "running_mean", "running_variance"]
    axes = [0, *range(2, len(x.shape))]
    made = [
        _constant("axes", np.array(axes, np.int64)),
        _constant("flat", np.array([-1], np.int64)),
        *_wide_inputs(names, given),
        helper.make_node("ReduceMean", ["x_wide", "axes"], ["mean_now"]),
        helper.make_node("Sub", ["x_wide", "mean_now"], ["centered"]),
        helper.make_node("Mul", ["centered", "centered"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["variance_now"]),
        helper.make_node("Reshape", ["mean_now", "flat"], ["own_mean"]),
        helper.make_node("Reshape", ["variance_now", "flat"], ["own_variance"]),
        helper.make_node("Sub", ["own_mean", "own_mean"], ["none"]),
        helper.make_node(
            "BatchNormalization",
            ["centered", "scale_wide", "bias_wide", "none", "own_variance"],
            ["y_wide"],
            epsilon=node.number("epsilon", 1e-5),
        ),
        helper.make_node("CastLike", ["y_wide", "x"], ["y"]),
        *_running("mean", node, _wide(given)),
        *_running("variance", node, _wide(given)),
    ]
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_function(node.domain, node.op_type, names, outputs, made, opsets)


def _wide(given: list[Value]) -> np.dtype[np.generic]:
    """The type that statistics are computed in."""
    widest = max((value.dtype for value in given if value.dtype in _WIDE), key=str, default=None)
    return _WIDE[0] if widest is None else widest


def _wide_inputs(names: list[str], given: list[Value]) -> list[onnx.NodeProto]:
    from onnx import helper

    element = helper.np_dtype_to_tensor_dtype(_wide(given))
    return [helper.make_node("Cast", [name], [f"{name}_wide"], to=element) for name in names]


def _running(name: str, node: Node, kind: np.dtype[np.generic]) -> list[onnx.NodeProto]:
    """``running = given * momentum + own * (1 - momentum)``, of the type of what is given."""
    from onnx import helper

    momentum = node.number("momentum", 0.9)
    return [
        _constant(f"{name}_kept", np.array(momentum, kind)),
        _constant(f"{name}_new", np.array(1 - momentum, kind)),
        helper.make_node("Mul", [f"{name}_wide", f"{name}_kept"], [f"{name}_old_part"]),
        helper.make_node("Mul", [f"own_{name}", f"{name}_new"], [f"{name}_new_part"]),
        helper.make_node("Add", [f"{name}_old_part", f"{name}_new_part"], [f"{name}_sum"]),
        helper.make_node("CastLike", [f"{name}_sum", name], [f"running_{name}"]),
    ]


def _constant(
    name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> onnx.NodeProto:
    from onnx import helper, numpy_helper

    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
