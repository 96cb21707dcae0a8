"""Invariants of every query answer and every compiled model, whichever check obtained them."""

from __future__ import annotations

from collections.abc import Mapping

import partita
from partita_conformance.judging.requirements import ConformanceError, require

OF_DEVICES = frozenset(
    partita.ReasonCode[name]
    for name in (
        *("UNSUPPORTED_OP", "UNSUPPORTED_DTYPE", "UNSUPPORTED_ATTRIBUTE", "UNSUPPORTED_SHAPE"),
        *("DYNAMIC_SHAPE", "VALUE_DEPENDENT_SHAPE", "MEMORY_LIMIT", "DRIVER_FAULT"),
    )
)
"""Codes that a device gives; all others are of those who choose among devices."""


def require_answer(
    model: partita.Model, answer: partita.QueryResult, name: str, virtual: bool
) -> None:
    """Looks at what a device says of a model.

    Args:
        model: What it was asked about.
        answer: What it said.
        name: The device's name, without an id.
        virtual: Whether it is made of other devices, for which it answers then.

    Raises:
        ConformanceError: An operation is neither taken nor refused, or both; another is spoken of;
            the answer is another device's; a reason is none, has no words or a code that no device
            gives, or says of shapes what the model says otherwise.
    """
    ops = {op.name: op for op in model.ops}
    taken, refused = set(answer), set(answer.reasons)
    strange = (taken | refused) - ops.keys()
    require(not strange, f"query_model speaks of operations that are not there: {strange}.")
    silent = ops.keys() - taken - refused
    require(not silent, f"{sorted(silent)} are neither taken nor have a reason.")
    both = set() if virtual else taken & refused
    require(not both, f"{sorted(both)} are taken and refused.")
    for device in {answer.device, *(() if virtual else answer.values())}:
        said = f"query_model answers for device '{device}', not '{name}'."
        require(str(device).partition(":")[0].partition(".")[0] == name, said)
    for operation, reason in answer.reasons.items():
        ok = isinstance(reason, partita.Reason) and isinstance(reason.code, partita.ReasonCode)
        require(ok, f"The reason for '{operation}' is {reason!r}, not a Reason with a ReasonCode.")
        said = f"The reason for '{operation}' is {reason.code.name} and says no more."
        require(isinstance(reason.detail, str) and bool(reason.detail.strip()), said)
        said = (
            f"The reason for '{operation}' is {reason.code.name}, which is not a device's to give."
        )
        require(virtual or reason.code in OF_DEVICES, said)
        if operation not in taken:
            require_true(ops[operation], reason)


def require_true(op: partita.Op, reason: partita.Reason) -> None:
    """Looks at what a reason says of shapes that the model has.

    Raises:
        ConformanceError: It says that a size is not known, or that elements decide it, and it is
            known, or every input is a constant.
    """
    import onnx_ir as ir  # with the first model that is read, and without what it seldom needs

    values = [value for value in (*op.node.inputs, *op.node.outputs) if value is not None]
    bodies = any(one.type == ir.AttributeType.GRAPH for one in op.node.attributes.values())
    if reason.code == partita.ReasonCode.DYNAMIC_SHAPE and values and not bodies:
        known = all(v.shape is not None and v.shape.is_static() for v in values)
        if known:
            raise ConformanceError(f"The reason for {op.op_type} of known shapes is: {reason}")
    if reason.code == partita.ReasonCode.VALUE_DEPENDENT_SHAPE:
        inputs = [value for value in op.node.inputs if value is not None]
        if all(value.const_value is not None for value in inputs):
            raise ConformanceError(f"The reason for {op.op_type} of constants is: {reason}")


def require_face(model: partita.Model, compiled: partita.CompiledModel) -> None:
    """Looks at what a compiled model shows of the model that it was made of.

    Raises:
        ConformanceError: It has other ports, or another name.
    """
    sides: Mapping[str, tuple[object, object]] = {
        "inputs": (tuple(compiled.inputs), tuple(model.inputs)),
        "outputs": (tuple(compiled.outputs), tuple(model.outputs)),
        "name": (compiled.get_property("NETWORK_NAME"), model.name),
    }
    for what, (have, due) in sides.items():
        require(have == due, f"Compiled, '{model.name}' has for its {what} {have}, not {due}.")
