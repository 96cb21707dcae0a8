"""Layers that read and write variables, which a model keeps from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.frontends.openvino_ir.translator import Site, translates
from partita.frontends.openvino_ir.weights import element_type

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("ReadValue")
def read_value(at: Site) -> ir.Value:
    """What a variable is: an input of the model; before the first run what this layer reads.

    The first run is told from others by a second input. Where both values have one known shape, a
    selection takes one of them; otherwise a branch does.
    """
    import onnx_ir as ir

    name, port = _variable(at), at.layer.outputs[0]
    if name in at.scope.read:
        raise at.error(f"another layer reads the variable '{name}' too")
    dims = [dim if dim >= 0 else None for dim in port.dims]
    held = ir.Value(
        name=at.scope.fresh(name),
        type=ir.TensorType(element_type(port.precision, at.layer)),
        shape=ir.Shape(dims),
    )
    at.scope.held[name] = [held]
    found = at.scope.read[name] = _begun(at, name, held) if at.has(0) else held
    return found


def _begun(at: Site, name: str, held: ir.Value) -> ir.Value:
    """The held value, or before the first run what the layer reads."""
    import onnx_ir as ir

    begun = ir.Value(
        name=at.scope.fresh(f"{name}/begun"),
        type=ir.TensorType(ir.DataType.BOOL),
        shape=ir.Shape([]),
    )
    at.scope.held[name].append(begun)
    first = at.inputs[0]
    dims = at.layer.outputs[0].dims
    if min(dims, default=0) >= 0 and at.dims(0) == dims:
        return at.emit("Where", begun, held, first)
    branches = {
        "then_branch": at.scope.passing(held, f"{at.layer.name}/later"),
        "else_branch": at.scope.passing(first, f"{at.layer.name}/first"),
    }
    return at.emit("If", begun, **branches)


@translates("Assign")
def assign(at: Site) -> ir.Value:
    """What a variable becomes; whoever reads the layer gets the same value."""
    name = _variable(at)
    if name in at.scope.assigned:
        raise at.error(f"another layer assigns the variable '{name}' too")
    at.scope.assigned[name] = at.inputs[0]
    return at.inputs[0]


def _variable(at: Site) -> str:
    """The variable's id."""
    if at.scope.depth:
        raise at.error("variables inside of a body are not read")
    name = at.layer.data.get("variable_id", "")
    if not name:
        raise at.error("attribute 'variable_id' is missing")
    return name
