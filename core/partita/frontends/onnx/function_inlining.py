"""Local functions of a model become the operations that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partita.errors import ModelFormatError
from partita.model.value_uses import operations

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

MOST_OPERATIONS = 1_000_000
"""Operations that a model may have once its functions are inlined."""


def inline_functions(ir_model: ir.Model) -> None:
    """Replaces calls of functions by their operations; the model has no functions any more.

    Raises:
        ModelFormatError: They would become too many operations, call themselves, or use operators
            that the model's opset defines otherwise.
    """
    from onnx_ir.passes.common import InlinePass

    _check_inlined_size(ir_model)
    for function in ir_model.functions.values():
        _return_own_values(function, ir_model.opset_imports)
        _import_as_model(function, ir_model)
    graphs: list[ir.Graph | ir.Function] = [ir_model.graph, *ir_model.functions.values()]
    for graph in graphs:
        for node in operations(graph)[0]:
            called = ir_model.functions.get(node.op_identifier())
            if called is None:
                continue
            if len(node.outputs) < len(called.outputs):
                node.resize_outputs(len(called.outputs))  # calls need not take all
            for value in node.outputs:
                value.name = value.name or None  # those left out keep the function's
    InlinePass()(ir_model)


def _return_own_values(function: ir.Function, opsets: Mapping[str, int]) -> None:
    """Copies what a function returns of its inputs, or twice.

    Inlining gives what is returned the name that it has where the function is called, and would
    give that to an input of the model.
    """
    import onnx_ir as ir

    returned = set()
    for place, value in enumerate(function.outputs):
        if value.producer() is None or value in returned:
            copy = ir.node("Identity", [value])
            function.append(copy)
            function.outputs[place] = copy.outputs[0]
            function.opset_imports.setdefault("", opsets.get("", 1))
        returned.add(value)


def _import_as_model(function: ir.Function, ir_model: ir.Model) -> None:
    """Imports the opsets of the model, where these define the function's operators the same.

    Raises:
        ModelFormatError: Names an operator that they define otherwise, or that ONNX does not.
    """
    for domain, version in function.opset_imports.items():
        target = ir_model.opset_imports.get(domain, version)
        if target == version:
            continue
        for node in operations(function)[0]:
            if node.domain != domain or node.op_identifier() in ir_model.functions:
                continue
            if not _takes_the_same(str(node.op_type), domain, version, target):
                raise ModelFormatError(
                    f"Function '{function.name}' of the model uses '{node.op_type}' of opset "
                    f"{version}, the model itself opset {target} (domain '{domain}'), which need "
                    "not mean the same by it; export the model with one opset."
                )
        function.opset_imports[domain] = target


def _takes_the_same(op_type: str, domain: str, version: int, target: int) -> bool:
    """Whether an opset defines an operator as a former one does, or for more types."""
    from onnx import defs

    try:
        old = defs.get_schema(op_type, version, domain)
        new = defs.get_schema(op_type, target, domain)
    except defs.SchemaError:  # nothing that ONNX defines
        return False
    types = {one.type_param_str: set(one.allowed_type_strs) for one in new.type_constraints}
    return old.since_version == new.since_version or (
        _signature(old) == _signature(new)
        and all(
            types.get(one.type_param_str, set()).issuperset(one.allowed_type_strs)
            for one in old.type_constraints
        )
    )


def _signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """Attributes, inputs and outputs of an operator, without the types that they may have."""
    attributes = {
        (name, str(one.type), one.required, str(one.default_value))
        for name, one in schema.attributes.items()
    }
    ports = (
        [(port.name, str(port.option), port.type_str) for port in side]
        for side in (schema.inputs, schema.outputs)
    )
    return (attributes, *ports)


def _check_inlined_size(ir_model: ir.Model) -> None:
    """Refuses functions that would become too many operations, or call themselves.

    Twenty-eight functions of two calls each are 3 KB of a file and 2**28 operations.

    Raises:
        ModelFormatError: They would.
    """
    functions = ir_model.functions
    sizes: dict[Any, int] = {}
    open_calls: list[Any] = [None]
    callees: dict[Any, tuple[int, list[Any]]] = {
        key: _calls(function, functions) for key, function in functions.items()
    }
    callees[None] = _calls(ir_model.graph, functions)
    while open_calls:
        key = open_calls[-1]
        own, called = callees[key]
        waiting = [one for one in called if one not in sizes]
        if not waiting:
            sizes[key] = min(own + sum(sizes[one] for one in called), MOST_OPERATIONS + 1)
            open_calls.pop()
        elif len(open_calls) > len(callees):
            raise ModelFormatError(f"Function '{key[1]}' of the model calls itself.")
        else:
            open_calls.append(waiting[0])
    if sizes[None] > MOST_OPERATIONS:
        raise ModelFormatError(
            f"The model's functions would become more than {MOST_OPERATIONS:,} operations where "
            "they are called; export it with fewer functions that call one another."
        )


def _calls(graph: Any, functions: Mapping[Any, Any]) -> tuple[int, list[Any]]:
    """How many operations a graph has that call no function, and which functions it calls."""
    import onnx_ir as ir

    keys = [node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(graph)]
    called = [key for key in keys if key in functions]
    return len(keys) - len(called), called
