"""Which operators compute the rows of a batch independently of one another.

A row is what belongs to one request. The axis along which rows lie is known for every value,
since shape inference carries a symbol along; a rule says whether, with rows along these axes, a
row of the results depends on the same row of the inputs alone. What has no rule is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.model.model import value_shape
from partita.model.op_traits import Trait, having

if TYPE_CHECKING:
    import onnx_ir as ir

Axes = Sequence[int | None]
"""For each input or output of a node, the axis along which rows lie; ``None`` if it has no rows."""

Rule = Callable[["ir.Node", Axes, Axes], bool]


def is_used(value: ir.Value) -> bool:
    """Whether anything reads a value."""
    return bool(value.uses()) or value.is_graph_output()


def from_the_right(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """Element by element with broadcasting: rows lie along one axis, counted from the last."""
    places = {
        axis - len(value.shape or ())
        for value, axis in zip((*node.inputs, *node.outputs), (*inputs, *outputs), strict=True)
        if value is not None and axis is not None
    }
    return len(places) == 1


def _first_of_data(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """Images with the batch first, and one result of them; weights have no rows."""
    alone = inputs[0] == 0 and not any(axis is not None for axis in inputs[1:])
    return alone and outputs[0] == 0 and not any(map(is_used, node.outputs[1:]))


def _resize(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """Regions would be of all axes, rows among them; scales of 1 leave rows as they are."""
    mode = node.attributes.get("coordinate_transformation_mode")
    is_cropped = mode is not None and mode.as_string() == "tf_crop_and_resize"
    return not is_cropped and _first_of_data(node, inputs, outputs)


def _inference(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    return not _integer(node, "training_mode", 0) and _first_of_data(node, inputs, outputs)


def _product(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """A matrix product: rows are no dimension that is summed over."""
    a, b = (len(value.shape or ()) if value is not None else 0 for value in node.inputs[:2])
    left, right = inputs[0], inputs[1]
    if any(axis is not None for axis in inputs[2:]):
        return False
    if left is not None and right is not None:
        return left - a == right - b and left - a <= -3
    if left is not None:
        return left != a - 1
    return right is not None and b > 1 and right != b - 2


def _gemm(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    others = any(axis is not None for axis in inputs[1:])
    return not others and inputs[0] == _integer(node, "transA", 0) and outputs[0] == 0


def _leading(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """Elements in their order under other dimensions: rows stay whole if they lie outermost."""
    return inputs[0] == 0 and outputs[0] == 0


def _by_symbol(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """Where rows lie in the result says all: the axis was not summed over, cut or joined."""
    return inputs[0] is not None and not any(axis is not None for axis in inputs[1:])


def _not_along(default: int) -> Rule:
    """Along another axis than that of rows, which all inputs have."""

    def rule(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
        axis = _axis(node, default)
        return (
            inputs[0] is not None and all(one == inputs[0] for one in inputs) and axis != inputs[0]
        )

    return rule


def _beyond(default: int) -> Rule:
    """Over an axis and all behind it, which rows lie before; other inputs have no rows."""

    def rule(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
        others = any(axis is not None for axis in inputs[1:])
        return not others and inputs[0] is not None and inputs[0] < _axis(node, default)

    return rule


def _softmax(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """Along one axis since opset 13, over all behind it before that."""
    graph = node.graph
    opset = node.version or (graph.opset_imports.get(node.domain, 1) if graph else 1)
    return (_not_along(-1) if opset >= 13 else _beyond(1))(node, inputs, outputs)


def _gather(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    data, indices = inputs
    if data is None:
        return True  # rows of indices look things up in what all have
    return indices is None and data != _axis(node, 0)


def _slice(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    axes = _constant(node, 3)
    others = any(axis is not None for axis in inputs[1:])
    if inputs[0] is None or axes is None or node.inputs[0] is None or others:
        return False
    rank = len(node.inputs[0].shape or ())
    return inputs[0] not in [axis % rank for axis in axes]


def _pad(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    axis, pads = inputs[0], _constant(node, 1)
    others = any(one is not None for one in inputs[1:])
    if axis is None or pads is None or len(node.inputs) > 3 or others:
        return False
    return not pads[axis] and not pads[axis + len(pads) // 2]


def _recurrent(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """Sequences with the batch second; lengths and first states have rows too, weights none."""
    expected: Axes = (1, None, None, None, 0, 1, 1, None)
    fits = all(
        value is None or axis == due
        for value, axis, due in zip(node.inputs, inputs, expected, strict=False)
    )
    return fits and not _integer(node, "layout", 0)


def _quantized(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    is_per_axis = any(value is not None and value.shape for value in node.inputs[1:])
    others = any(axis is not None for axis in inputs[1:])
    return not others and not (is_per_axis and _axis(node, 1) == inputs[0])


def _same_for_all(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    """Makes rows that are all alike, out of what has none."""
    return inputs[0] is None


def _expand(node: ir.Node, inputs: Axes, outputs: Axes) -> bool:
    return inputs[0] is None or from_the_right(node, inputs, outputs)


def _rows(rule: Rule, kinds: str) -> dict[str, Rule]:
    return dict.fromkeys(kinds.split(), rule)


RULES: Mapping[str, Rule] = {
    **{kind: from_the_right for kind in having(Trait.ELEMENTWISE) if ":" not in kind},
    **_rows(from_the_right, "Acos Acosh And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr"),
    **_rows(from_the_right, "Cast Cos Cosh Dropout Equal Greater GreaterOrEqual Identity IsInf"),
    **_rows(
        from_the_right, "IsNaN Less LessOrEqual Mod Not Or Shrink Sin Sinh Swish Tan Where Xor"
    ),
    **_rows(_first_of_data, "AveragePool Conv ConvTranspose DepthToSpace GlobalAveragePool"),
    **_rows(_first_of_data, "GlobalMaxPool GlobalLpPool GroupNormalization InstanceNormalization"),
    **_rows(_first_of_data, "ConvInteger LRN LpPool MaxPool QLinearConv SpaceToDepth"),
    **_rows(_inference, "BatchNormalization"),
    **_rows(_product, "MatMul MatMulInteger"),
    **_rows(_gemm, "Gemm"),
    **_rows(_leading, "Flatten Reshape"),
    **_rows(_by_symbol, "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean"),
    **_rows(_by_symbol, "ReduceMin ReduceProd ReduceSum ReduceSumSquare ArgMax ArgMin"),
    **_rows(_by_symbol, "Squeeze Transpose Unsqueeze"),
    **_rows(_not_along(1), "Concat"),
    **_rows(_not_along(0), "GatherElements"),
    **_rows(_not_along(-1), "LpNormalization"),
    **_rows(_beyond(-1), "LayerNormalization RMSNormalization"),
    **_rows(_softmax, "Hardmax LogSoftmax Softmax"),
    **_rows(_recurrent, "GRU LSTM RNN"),
    **_rows(_quantized, "DequantizeLinear QuantizeLinear"),
    **_rows(_same_for_all, "ConstantOfShape"),
    "Split": lambda node, inputs, outputs: inputs[0] is not None and _axis(node, 0) != inputs[0],
    "TopK": lambda node, inputs, outputs: inputs[0] is not None and _axis(node, -1) != inputs[0],
    "Expand": _expand,
    "Gather": _gather,
    "Resize": _resize,
    "Slice": _slice,
    "Pad": _pad,
}
"""Operator of ONNX's own domain to its rule."""

SIZES = frozenset(
    {
        *("Add", "Cast", "Concat", "Div", "Equal", "Gather", "Identity", "Max", "Min", "Mul"),
        *("Reshape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
    }
)
"""Operators that compute with shapes, which tell how many rows there are."""

SIZED = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Resize": 1}
"""Operators that take the shape of their result as an input, to the first such input."""


def _integer(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _axis(node: ir.Node, default: int) -> int:
    """The attribute ``axis``, counted from the first axis of the first input."""
    first = node.inputs[0]
    rank = len(value_shape(first) or ()) if first is not None else 0
    axis = _integer(node, "axis", default)
    return axis + rank if axis < 0 else axis


def _constant(node: ir.Node, position: int) -> list[int] | None:
    """The elements of an input that is constant."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None or value.const_value is None:
        return None
    return [int(x) for x in np.ravel(value.const_value.numpy())]
