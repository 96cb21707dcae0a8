"""Models of two operations out of one table, each with each: what a pass may take for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance.inputs.models import Array, Sample

_SHAPE = (4, 4, 4)
"""As long along each axis, so that constants of rows fit columns, and an axis another one."""
Constants = Sequence[Array]


class Step(NamedTuple):
    """An operation on one value.

    Attributes:
        op: The operator.
        given: Its attributes.
        before: Makes, of the value's shape, constants that are inputs before the value.
        behind: Makes those behind it.
        outputs: How many outputs it has, of which the last goes on.
    """

    op: str
    given: Mapping[str, Any] = {}
    behind: Callable[[Sequence[int]], Constants] = lambda shape: ()
    before: Callable[[Sequence[int]], Constants] = lambda shape: ()
    outputs: int = 1


def _numbers(*shape: int) -> Array:
    count = int(np.prod(shape))
    return np.asarray(0.75 + (np.arange(count) * 5 % 7) / 4, np.float32).reshape(shape)


def _whole(*values: int) -> Array:
    return np.array(values, np.int64)


def _column(shape: Sequence[int]) -> Constants:
    return (_numbers(*shape[-2:-1], 1),)


def _row(shape: Sequence[int]) -> Constants:
    return (_numbers(*shape[-1:]),)


def _one(value: float) -> Callable[[Sequence[int]], Constants]:
    return lambda shape: (np.array(value, np.float32),)


_FAR = np.iinfo(np.int64).max
STEPS: Mapping[str, Step] = {
    "every other": Step("Slice", {}, lambda s: (_whole(0), _whole(_FAR), _whole(0), _whole(2))),
    "backwards": Step("Slice", {}, lambda s: (_whole(-1), _whole(-_FAR), _whole(-1), _whole(-1))),
    "but the first": Step("Slice", {}, lambda s: (_whole(1), _whole(_FAR), _whole(-1))),
    "padded": Step(
        "Pad", {}, lambda s: (_whole(*[0] * (2 * len(s) - 1), 1), np.array(0.5, np.float32))
    ),
    "turned": Step("Transpose"),
    "limited": Step("Clip", {}, lambda s: (*_one(-0.5)(s), *_one(0.8)(s))),
    "at least": Step("Clip", {}, _one(0.2)),
    "least": Step("Min", {}, _one(0.5)),
    "greatest": Step("Max", {}, _one(-0.3)),
    "plus a column": Step("Add", {}, _column),
    "plus a row": Step("Add", {}, _row),
    "times a column": Step("Mul", {}, _column),
    "times a row": Step("Mul", {}, _row),
    "over a row": Step("Div", {}, _row),
    "taken from a row": Step("Sub", {}, before=_row),
    "squared": Step("Pow", {}, _one(2)),
    "negative": Step("Neg"),
    "rectified": Step("Relu"),
    "a root": Step("Sqrt"),
    "a power of e": Step("Exp"),
    "the sum of rows": Step("ReduceSum", {"keepdims": 1}, lambda s: (_whole(0),)),
    "the greatest of columns": Step("ReduceMax", {"axes": [-1], "keepdims": 0}),
    "the mean of columns": Step("ReduceMean", {"axes": [-1], "keepdims": 1}),
    "flat but for the last": Step("Reshape", {}, lambda s: (_whole(-1, s[-1]),)),
    "one more axis": Step("Unsqueeze", {}, lambda s: (_whole(1),)),
    "joined": Step("Concat", {"axis": -1}, lambda s: (_numbers(*s),)),
    "chosen": Step("Gather", {"axis": -1}, lambda s: (_whole(s[-1] - 1, 0, 0),)),
    "the latter half": Step("Split", {"axis": -1}, outputs=2),
    "times a matrix": Step("MatMul", {}, lambda s: (_numbers(s[-1], s[-1]),)),
    "a matrix times": Step("MatMul", {}, before=lambda s: (_numbers(s[-2], s[-2]),)),
}
"""Operations by what they make of a value."""


def _channels(shape: Sequence[int]) -> Constants:
    return (_numbers(shape[1], 1, 1),)


def _kernel(inputs: int, size: int) -> Callable[[Sequence[int]], Constants]:
    """Of as many outputs as channels; of one channel each, or of all."""
    return lambda shape: (_numbers(shape[1], inputs or shape[1], size, size) - 1.5,)


_IMAGE = (1, 4, 4, 4)
_TO_THE_RIGHT = {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}
IMAGE_STEPS: Mapping[str, Step] = {
    "rectified": Step("Relu"),
    "limited": Step("Clip", {}, lambda s: (*_one(-0.5)(s), *_one(0.8)(s))),
    "a sigmoid": Step("Sigmoid"),
    "negative": Step("Neg"),
    "plus channels": Step("Add", {}, _channels),
    "times channels": Step("Mul", {}, _channels),
    "normalized": Step("BatchNormalization", {}, lambda s: (_numbers(s[1]),) * 4),
    "convolved": Step("Conv", {"pads": [1, 1, 1, 1]}, _kernel(0, 3)),
    "convolved by points": Step("Conv", {}, _kernel(0, 1)),
    "convolved by channels": Step("Conv", {"pads": [1, 1, 1, 1], "group": 4}, _kernel(1, 3)),
    "the greatest around": Step("MaxPool", _TO_THE_RIGHT),
    "the mean around": Step("AveragePool", _TO_THE_RIGHT),
    "the mean of channels": Step("GlobalAveragePool"),
    "padded": Step(
        "Pad", {}, lambda s: (_whole(0, 0, 1, 0, 0, 0, 0, 1), np.array(0.5, np.float32))
    ),
    "larger": Step(
        "Resize",
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
        lambda s: (np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)),
    ),
    "turned": Step("Transpose", {"perm": [0, 1, 3, 2]}),
    "shared by channels": Step("Softmax", {"axis": 1}),
}
"""Operations on images of four channels."""


def image_pairs(first: str) -> Iterator[Sample]:
    """The models of an operation on images and each other one behind it."""
    for second in IMAGE_STEPS.values():
        start, weights = _node(IMAGE_STEPS[first], _IMAGE, "x", "a")
        shape = _sizes(_model([start], weights, "a", _IMAGE))
        end, more = _node(second, shape, "a", "y")
        model = _model([start, end], [*weights, *more], "y", _IMAGE)
        yield Sample(f"an image {first}, then {second.op}", model)


def pairs(first: str) -> Iterator[Sample]:
    """The models of an operation and each other one behind it, which take ``float[4,4,4] x``."""
    shape = _shape_behind(STEPS[first])
    for second, step in STEPS.items():
        if len(shape) < 2 or (step.outputs > 1 and shape[-1] % step.outputs):
            continue
        start, weights = _node(STEPS[first], _SHAPE, "x", "a")
        end, more = _node(step, shape, "a", "y")
        yield Sample(f"{first}, then {second}", _model([start, end], [*weights, *more], "y"))
    yield _of_two(first, "two of them in a row", "Concat", {"axis": 0})
    yield _of_two(first, "two of them side by side", "Concat", {"axis": -1})
    yield _of_two(first, "two of them multiplied", "Mul", {})


def _of_two(first: str, text: str, op: str, given: Mapping[str, Any]) -> Sample:
    """An operation on what another one makes of two values."""
    one, weights = _node(STEPS[first], _SHAPE, "x", "a")
    other, more = _node(STEPS[first], _SHAPE, "z", "b")
    both = helper.make_node(op, ["a", "b"], ["y"], **given)
    proto = _model([one, other, both], [*weights, *more], "y")
    proto.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, _SHAPE))
    return Sample(f"{first}, then {text}", proto)


def _shape_behind(step: Step) -> tuple[int, ...]:
    node, weights = _node(step, _SHAPE, "x", "a")
    return _sizes(_model([node], weights, "a"))


def _sizes(model: onnx.ModelProto) -> tuple[int, ...]:
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return tuple(dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim)


def _node(
    step: Step, shape: Sequence[int], value: str, result: str
) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    names, weights = [value], []
    for side, arrays in (("before", step.before(shape)), ("behind", step.behind(shape))):
        made = [numpy_helper.from_array(a, f"{result}{side}{i}") for i, a in enumerate(arrays)]
        weights += made
        new = [tensor.name for tensor in made]
        names = [*new, *names] if side == "before" else [*names, *new]
    outputs = [*(f"{result}{i}" for i in range(step.outputs - 1)), result]
    return helper.make_node(step.op, names, outputs, name=f"to_{result}", **step.given), weights


def _model(
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto],
    output: str,
    shape: Sequence[int] = _SHAPE,
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "pair", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
