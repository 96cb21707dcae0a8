"""A model made to take several requests at once, if their rows do not meet in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import PartitaError
from partita.model.model import Model, value_shape
from partita_virtual.batch.row_rules import RULES, SIZED, SIZES, is_used

if TYPE_CHECKING:
    import onnx_ir as ir

_ROWS = "partita_rows"
"""The symbol that stands for the number of rows."""


def batched(model: Model, size: int) -> Model | Reason:
    """The model with the first dimension of all inputs and outputs so many times as large.

    Args:
        model: What takes one request, whose inputs have 1 or a symbol as their first dimension.
        size: How many requests the result takes.

    Returns:
        Another model; or why there is none.
    """
    fault = _ports(model)
    if fault is not None:
        return fault
    own = model.clone()
    graph = own.ir.graph
    for node in graph:
        _let_rows_pass(node)
    for node in graph:
        for value in node.outputs:
            value.shape = None  # claims of one row would contradict
    ports = {port.name: tuple(port.shape or ()) for port in model.inputs}
    try:
        own.reshape({name: (_ROWS, *shape[1:]) for name, shape in ports.items()})
        fault = _meeting(own)
        if fault is not None:
            return fault
        for node in graph:
            for value in node.outputs:
                value.shape = None
        return own.reshape({name: (size, *shape[1:]) for name, shape in ports.items()})
    except PartitaError as error:
        return Reason(ReasonCode.UNSUPPORTED_SHAPE, f"the batch has no shapes: {error}")


def _ports(model: Model) -> Reason | None:
    """What is wrong with inputs and outputs."""
    if model.variables:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "the model keeps state from run to run")
    for port in model.inputs:
        first = port.shape[0] if port.shape else 0
        if isinstance(first, int) and first != 1:
            return Reason(
                ReasonCode.UNSUPPORTED_SHAPE,
                f"input '{port.name}' is {port.describe()}; a first dimension of 1, or one that "
                "varies, can be that of a batch",
            )
    return None


def _let_rows_pass(node: ir.Node) -> None:
    """Has a Reshape keep the first dimension, where it says that it is 1."""
    if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return
    import onnx_ir as ir

    data, target = node.inputs[0], node.inputs[1]
    if data is None or target is None or target.const_value is None:
        return
    dims = np.ravel(target.const_value.numpy()).copy()
    allowzero = node.attributes.get("allowzero")
    keeps_zero = allowzero is not None and allowzero.as_int()
    if not len(dims) or dims[0] != 1 or keeps_zero or (value_shape(data) or (0,))[0] != 1:
        return
    dims[0] = 0  # stands for the dimension of the input
    name = f"{target.name}_for_rows_of_{node.name}"
    value = ir.Value(name=name, const_value=ir.tensor(dims, name=name))
    value.shape, value.dtype = ir.Shape([len(dims)]), ir.DataType.INT64
    if node.graph is not None:
        node.graph.initializers.add(value)
    node.replace_input_with(1, value)


def _meeting(model: Model) -> Reason | None:
    """The first operation in which a row would depend on another one; ``None`` if there is none."""
    graph = model.ir.graph
    with_rows: dict[ir.Value, int] = {}
    sizes: set[ir.Value] = set()
    for value in graph.inputs:
        with_rows[value] = 0
    for node in graph:
        inputs = [None if value is None else with_rows.get(value) for value in node.inputs]
        has_rows = any(axis is not None for axis in inputs)
        has_sizes = any(value in sizes for value in node.inputs)
        if any(attribute.type.name.startswith("GRAPH") for attribute in node.attributes.values()):
            return _refused(node, "what its body computes of a row is not looked at")
        if not has_rows and not has_sizes:
            continue
        own = node.domain in ("", "ai.onnx")
        if own and node.op_type == "Shape":
            sizes.update(node.outputs)
            continue
        found = [_axis_of_rows(value) for value in node.outputs]
        if (
            own
            and not has_rows
            and node.op_type in SIZES
            and not any(axis is not None for axis in found)
        ):
            sizes.update(node.outputs)
            continue
        rule = RULES.get(node.op_type) if own else None
        if rule is None:
            return _refused(node, "rows of a batch may meet in it")
        first = SIZED.get(node.op_type, len(node.inputs))
        if any(value in sizes for value in node.inputs[:first]):
            return _refused(node, "it computes with the number of rows")
        pairs = zip(node.outputs, found, strict=True)
        named = [(value, axis) for value, axis in pairs if is_used(value)]
        if any(axis is None for _, axis in named):
            return _refused(node, "its result has no row for each request, or no known shape")
        if not rule(node, inputs, found):
            return _refused(node, "with these axes and shapes, rows of a batch meet in it")
        with_rows |= {value: axis for value, axis in named if axis is not None}
    for value in graph.outputs:
        if with_rows.get(value) != 0:
            return Reason(
                ReasonCode.UNSUPPORTED_SHAPE,
                f"output '{value.name}' does not have the rows of a batch as its first dimension",
            )
    return None


def _axis_of_rows(value: ir.Value) -> int | None:
    """Along which axis rows lie; ``None`` if that is not one axis."""
    places = [axis for axis, dim in enumerate(value_shape(value) or ()) if dim == _ROWS]
    return places[0] if len(places) == 1 else None


def _refused(node: ir.Node, why: str) -> Reason:
    return Reason(ReasonCode.UNSUPPORTED_OP, f"'{node.name}' ({node.op_type}): {why}")
