"""Models of any two operations of a table, which a pass may mistake for one.

All those of a table that begin alike stand side by side in one model, each with an input of its
own; in another one, all operations of the table read what the first one makes.
"""

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


def _int64(*values: int) -> Array:
    return np.array(values, np.int64)


def _column(shape: Sequence[int]) -> Constants:
    return (_numbers(*shape[-2:-1], 1),)


def _row(shape: Sequence[int]) -> Constants:
    return (_numbers(*shape[-1:]),)


def _one(value: float) -> Callable[[Sequence[int]], Constants]:
    return lambda shape: (np.array(value, np.float32),)


_FAR = np.iinfo(np.int64).max
STEPS: Mapping[str, Step] = {
    "every other": Step("Slice", {}, lambda s: (_int64(0), _int64(_FAR), _int64(0), _int64(2))),
    "backwards": Step("Slice", {}, lambda s: (_int64(-1), _int64(-_FAR), _int64(-1), _int64(-1))),
    "but the first": Step("Slice", {}, lambda s: (_int64(1), _int64(_FAR), _int64(-1))),
    "padded": Step(
        "Pad", {}, lambda s: (_int64(*[0] * (2 * len(s) - 1), 1), np.array(0.5, np.float32))
    ),
    "the middle": Step("Slice", {}, lambda s: (_int64(1), _int64(3), _int64(len(s) - 1))),
    "padded with zeros": Step(
        "Pad", {}, lambda s: (_int64(*[0] * (len(s) - 1), 1, *[0] * len(s)),)
    ),
    "cropped": Step("Pad", {}, lambda s: (_int64(*[0] * (len(s) - 1), -1, *[0] * len(s)),)),
    "turned": Step("Transpose"),
    "turned round": Step("Transpose", {"perm": [1, 2, 0]}),
    "shares of columns": Step("Softmax", {"axis": -1}),
    "shares of rows": Step("Softmax", {"axis": 0}),
    "limited": Step("Clip", {}, lambda s: (*_one(-0.5)(s), *_one(0.8)(s))),
    "limited higher": Step("Clip", {}, lambda s: (*_one(1.1)(s), *_one(1.9)(s))),
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
    "the sum of rows": Step("ReduceSum", {"keepdims": 1}, lambda s: (_int64(0),)),
    "the sum of rows alone": Step("ReduceSum", {"keepdims": 0}, lambda s: (_int64(0),)),
    "the sum of columns alone": Step("ReduceSum", {"keepdims": 0}, lambda s: (_int64(1),)),
    "the greatest of columns": Step("ReduceMax", {"axes": [-1], "keepdims": 0}),
    "the mean of columns": Step("ReduceMean", {"axes": [-1], "keepdims": 1}),
    "flat but for the last": Step("Reshape", {}, lambda s: (_int64(-1, s[-1]),)),
    "the first rows kept": Step("Reshape", {}, lambda s: (_int64(0, -1),)),
    "one more axis": Step("Unsqueeze", {}, lambda s: (_int64(1),)),
    "joined": Step("Concat", {"axis": -1}, lambda s: (_numbers(*s),)),
    "chosen": Step("Gather", {"axis": -1}, lambda s: (_int64(s[-1] - 1, 0, 0),)),
    "the latter half": Step("Split", {"axis": -1}, outputs=2),
    "times a matrix": Step("MatMul", {}, lambda s: (_numbers(s[-1], s[-1]),)),
    "a matrix times": Step("MatMul", {}, before=lambda s: (_numbers(s[-2], s[-2]),)),
}
"""Operations by what they make of a value."""


def _square(shape: Sequence[int]) -> Constants:
    return (_numbers(4, 4),)


_MATRIX = (4, 4)
_GEMM = {"alpha": 0.5, "beta": 2.0}
MATRIX_STEPS: Mapping[str, Step] = {
    "times a matrix": Step("MatMul", {}, _square),
    "a matrix times": Step("MatMul", {}, before=_square),
    "times a matrix and more": Step("Gemm", _GEMM, lambda s: (_numbers(4, 4), _numbers(4))),
    "times a turned matrix": Step("Gemm", {"transB": 1}, _square),
    "turned and times a matrix": Step("Gemm", {"transA": 1}, _square),
    "turned": Step("Transpose", {"perm": [1, 0]}),
    "plus a number": Step("Add", {}, _one(0.7)),
    "plus a row": Step("Add", {}, _row),
    "plus a column": Step("Add", {}, _column),
    "plus a matrix": Step("Add", {}, _square),
    "times a number": Step("Mul", {}, _one(-1.5)),
    "times a row": Step("Mul", {}, _row),
    "times a column": Step("Mul", {}, _column),
    "over a number": Step("Div", {}, _one(0.6)),
    "taken from a row": Step("Sub", {}, before=_row),
    "rectified": Step("Relu"),
    "levelled": Step("LayerNormalization", {}, lambda s: (_numbers(4), _numbers(4) - 1)),
}
"""Operations on matrices of four rows and columns, which stay so."""


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
    "plus rows": Step("Add", {}, lambda s: (_numbers(s[2], 1),)),
    "plus columns": Step("Add", {}, lambda s: (_numbers(s[3]),)),
    "times columns": Step("Mul", {}, lambda s: (_numbers(s[3]),)),
    "normalized": Step("BatchNormalization", {}, lambda s: (_numbers(s[1]),) * 4),
    "convolved": Step("Conv", {"pads": [1, 1, 1, 1]}, _kernel(0, 3)),
    "convolved by points": Step("Conv", {}, _kernel(0, 1)),
    "convolved by channels": Step("Conv", {"pads": [1, 1, 1, 1], "group": 4}, _kernel(1, 3)),
    "the greatest around": Step("MaxPool", _TO_THE_RIGHT),
    "the mean around": Step("AveragePool", _TO_THE_RIGHT),
    "the greatest of every other": Step(
        "MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
    ),
    "the mean of windows": Step("AveragePool", {"kernel_shape": [2, 2]}),
    "the mean of channels": Step("GlobalAveragePool"),
    "padded": Step(
        "Pad", {}, lambda s: (_int64(0, 0, 1, 0, 0, 0, 0, 1), np.array(0.5, np.float32))
    ),
    "padded with zeros": Step("Pad", {}, lambda s: (_int64(0, 0, 1, 0, 0, 0, 0, 1),)),
    "cropped": Step("Pad", {}, lambda s: (_int64(0, 0, 0, 0, 0, 0, -1, -1),)),
    "larger": Step(
        "Resize",
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
        lambda s: (np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)),
    ),
    "turned": Step("Transpose", {"perm": [0, 1, 3, 2]}),
    "channels last": Step("Transpose", {"perm": [0, 2, 3, 1]}),
    "shared by channels": Step("Softmax", {"axis": 1}),
}
"""Operations on images of four channels."""


class Table(NamedTuple):
    """Operations that are tried each behind each.

    Attributes:
        steps: They, by what they make.
        shape: Of the first value.
        article: What stands before the name of a step in the name of a check.
    """

    steps: Mapping[str, Step]
    shape: Sequence[int]
    article: str = ""


TABLES = (
    Table(STEPS, _SHAPE),
    Table(MATRIX_STEPS, _MATRIX, "a matrix "),
    Table(IMAGE_STEPS, _IMAGE, "an image "),
)


def seconds(table: Table, first: str) -> list[str]:
    """The operations that take what an operation makes."""
    shape = _shape_behind(table, first)
    return [name for name, step in table.steps.items() if _fits(step, shape)]


def side_by_side(table: Table, first: str, chosen: Sequence[str]) -> Sample:
    """A model of an operation and each chosen one behind it, each pair with its own input.

    Outputs have the names of the second operations.
    """
    shape = _shape_behind(table, first)
    nodes, weights, inputs = [], [], []
    for number, second in enumerate(chosen):
        start, some = _node(table.steps[first], table.shape, f"x{number}", f"a{number}_")
        end, more = _node(table.steps[second], shape, f"a{number}_", second)
        nodes += [start, end]
        weights += [*some, *more]
        inputs.append(f"x{number}")
    proto = _model(nodes, weights, inputs, chosen, table.shape)
    return Sample(f"{table.article}{first}, then", proto)


def from_one(table: Table, first: str, chosen: Sequence[str]) -> Sample:
    """A model in which each chosen operation reads the value that the first one makes."""
    shape = _shape_behind(table, first)
    start, weights = _node(table.steps[first], table.shape, "x", "a")
    nodes = [start]
    for second in chosen:
        end, more = _node(table.steps[second], shape, "a", second)
        nodes.append(end)
        weights += more
    proto = _model(nodes, weights, ["x"], chosen, table.shape)
    return Sample(f"{table.article}{first}, which others read, then", proto)


def of_two(first: str) -> Iterator[Sample]:
    """Models of an operation on what another one makes of each of two values."""
    yield _of_two(first, "two of them in a row", "Concat", {"axis": 0})
    yield _of_two(first, "two of them side by side", "Concat", {"axis": -1})
    yield _of_two(first, "two of them multiplied", "Mul", {})


def _fits(step: Step, shape: Sequence[int]) -> bool:
    """Whether an operation takes a value of a shape."""
    if len(shape) < 2 or (step.outputs > 1 and shape[-1] % step.outputs):
        return False
    if "kernel_shape" in step.given and len(step.given) == 1:  # which reaches over no edge
        return all(n >= k for n, k in zip(shape[2:], step.given["kernel_shape"], strict=True))
    order = step.given.get("perm")
    return order is None or len(order) == len(shape)


def _of_two(first: str, text: str, op: str, given: Mapping[str, Any]) -> Sample:
    """An operation on what another one makes of two values."""
    one, weights = _node(STEPS[first], _SHAPE, "x", "a")
    other, more = _node(STEPS[first], _SHAPE, "z", "b")
    both = helper.make_node(op, ["a", "b"], ["y"], **given)
    proto = _model([one, other, both], [*weights, *more], ["x", "z"], ["y"], _SHAPE)
    return Sample(f"{first}, then {text},", proto)


def _shape_behind(table: Table, first: str) -> tuple[int, ...]:
    node, weights = _node(table.steps[first], table.shape, "x", "a")
    return _sizes(_model([node], weights, ["x"], ["a"], table.shape))


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
    return helper.make_node(step.op, names, outputs, name=f"to {result}", **step.given), weights


def _model(
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    shape: Sequence[int],
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in inputs]
    made = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph(nodes, "pair", given, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
