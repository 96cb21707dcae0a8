"""Removes empty initial caches and the reordering of beams from stateful decoders.

Decoders of OpenVINO compute an empty cache for the first run, and choose by an input which sequence
goes on in which row (beams). Here a cache begins empty by itself, and every row goes on as it is;
so both only cost time and hide from devices that a layer reads its cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.generate.caches.graph_edits import drop_unused, let_read
from partita.model.model import Model, value_shape
from partita.model.value_uses import captures
from partita.model.variables import METADATA_KEY, Variable, to_metadata

if TYPE_CHECKING:
    import onnx_ir as ir

BEAMS = "beam_idx"


def simplify(model: Model, axis: int) -> None:
    """Takes beginnings out that are empty along an axis, and the choice of rows behind them.

    Args:
        model: A decoder; it is changed.
        axis: The axis along which caches grow.
    """
    by_name = {value.name: value for value in model.ir.graph.inputs}
    variables = model.variables
    if not any(variable.begun for variable in variables) and BEAMS not in by_name:
        return
    kept = [_simplified(by_name, variable, axis) for variable in variables]
    model.ir.metadata_props[METADATA_KEY] = to_metadata(kept)
    _drop_unused(model)


def _simplified(inputs: dict[str | None, ir.Value], variable: Variable, axis: int) -> Variable:
    """The variable without its beginning, if that is empty; rows go on as they are."""
    held = inputs[variable.read]
    if variable.begun:
        choice = _choice(inputs[variable.begun])
        if choice is None or not _is_empty(_beginning(choice), axis):
            return variable
        let_read(choice.outputs[0], held)
    for use in held.uses():
        node = use.node
        if node.op_type == "Gather" and node.inputs[0] is held and _picks_rows(node):
            let_read(node.outputs[0], held)
    return Variable(variable.name, variable.read, variable.written)


def _choice(begun: ir.Value) -> ir.Node | None:
    """The operation that takes what is held or, in the first run, the beginning."""
    nodes = [use.node for use in begun.uses()]
    known = len(nodes) == 1 and nodes[0].op_type in ("If", "Where") and nodes[0].inputs[0] is begun
    return nodes[0] if known else None


def _beginning(choice: ir.Node) -> ir.Value | None:
    if choice.op_type == "Where":
        return choice.inputs[2]
    body = choice.attributes["else_branch"].as_graph()
    value = body.outputs[0]
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _is_empty(value: ir.Value | None, axis: int) -> bool:
    """Whether a value is known to have no element along an axis."""
    if value is None:
        return False
    shape = value_shape(value)
    if shape is not None and len(shape) > axis and shape[axis] == 0:
        return True
    node = value.producer()
    if node is None or node.op_type not in ("Expand", "ConstantOfShape"):
        return False
    sizes = _known_sizes(node.inputs[-1])
    return sizes is not None and len(sizes) > axis and sizes[axis] == 0


def _known_sizes(value: ir.Value | None) -> list[int | None] | None:
    """The elements of a vector of sizes, as far as they are constant."""
    if value is None:
        return None
    if value.const_value is not None:
        return [int(size) for size in value.const_value.numpy().ravel()]
    node = value.producer()
    if node is not None and node.op_type == "Concat":
        parts = [_known_sizes(one) for one in node.inputs]
        known = [part for part in parts if part is not None]
        return [size for part in known for size in part] if len(known) == len(parts) else None
    shape = value_shape(value)
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
        return None
    return [None] * shape[0]


def _picks_rows(node: ir.Node) -> bool:
    """Whether a Gather takes rows of the batch as the input for beams says."""
    axis = node.attributes.get("axis")
    value, source = node.inputs[1], None
    while value is not None and (source := value.producer()) is not None:
        if source.op_type not in ("Cast", "Identity"):
            return False
        value = source.inputs[0]
    is_first = axis is None or axis.as_int() == 0
    return is_first and value is not None and value.name == BEAMS and value.is_graph_input()


def _drop_unused(model: Model) -> None:
    """Removes operations that nothing reads any more, and inputs that only those read."""
    graph = model.ir.graph
    drop_unused(graph)
    read = {value for node in graph for value in (*node.inputs, *captures(node))}
    own = {variable.read for variable in model.variables}
    for value in [*graph.inputs]:
        is_free = value not in read and not value.is_graph_output()
        if is_free and value.name not in own and _is_choice(value):
            graph.inputs.remove(value)


def _is_choice(value: ir.Value) -> bool:
    """Whether an input only says which rows go on, or whether there was a run before."""
    import onnx_ir as ir

    return value.name == BEAMS or value.dtype == ir.DataType.BOOL
