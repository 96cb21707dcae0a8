"""Checks that inputs to which ONNX gives one type variable have one type.

For all back-ends, when a node gets its shapes. Kernels that copy elements rely on it: one that
concatenates bytes with 32-bit numbers would write out of bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering.graph import Node, Value
from partita.lowering.program import Operand

PRECISIONS = frozenset(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16)))
"""One of these may stand for another: back-ends keep some tensors in fewer bits, and know it."""

Groups = tuple[tuple[tuple[int, ...], bool], ...]


def check_types(node: Node, operands: Sequence[Operand | None]) -> None:
    """Refuses an operation whose inputs are to be of one type, by its definition, and are not.

    Raises:
        CompileError: They are not.
    """
    if len(operands) < 2:
        return
    for places, repeats in _groups_of(node, len(operands)):
        chosen = [operands[place] for place in places if place < len(operands)]
        if repeats:
            chosen += operands[places[-1] + 1 :]
        found = {operand.dtype for operand in chosen if operand is not None}
        if len(found) > 1 and not found <= PRECISIONS:
            listed = ", ".join("none" if o is None else str(o.dtype) for o in operands)
            raise CompileError(
                f"Operation '{node.name}' ({node.model_kind}) has inputs of types {listed}; "
                "expected one type where they are joined or combined. Cast them."
            )


def mixed_types(node: Node) -> Reason | None:
    """Why no kernel may take an operation as a model has it, ``None`` if the model has no fault.

    Of what a model says, unlike of what a back-end keeps in fewer bits by its own will, all inputs
    of one type variable are to be of one type, as onnxruntime demands: files of which a part was
    converted to float16 are not.
    """
    for places, repeats in _groups_of(node, len(node.inputs)):
        chosen = [node.input(place) for place in places]
        if repeats:
            chosen += node.inputs[places[-1] + 1 :]
        found = {_type_of(value) for value in chosen if value is not None} - {None}
        if len(found) > 1:
            listed = " and ".join(sorted(map(str, found)))
            text = f"its inputs are {listed}; expected one type, as by a Cast"
            return Reason(ReasonCode.UNSUPPORTED_DTYPE, text)
    return None


def _type_of(value: Value) -> np.dtype[Any] | None:
    return value.dtype if value.const is None else value.const.dtype


def _groups_of(node: Node, count: int) -> Groups:
    """As `_groups`, of an operator of any domain with so many inputs."""
    if node.kind == "com.microsoft::QLinearConcat":
        return ((tuple(place for place in range(1, count) if place % 3), False),)
    if node.kind == "com.microsoft::GroupQueryAttention":
        return (((3, 4), False),)
    return () if node.domain else _groups(node.op_type, node.version)


@functools.cache
def _groups(op_type: str, version: int) -> Groups:
    """Places of inputs that are of one type, and whether any number follows the last of them."""
    import onnx

    try:
        schema = onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return ()
    names: dict[str, list[int]] = {}
    for place, formal in enumerate(schema.inputs):
        names.setdefault(formal.type_str, []).append(place)
    last = schema.inputs[-1] if schema.inputs else None
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    repeats = last is not None and last.option == variadic and last.is_homogeneous
    groups = []
    for places in names.values():
        repeated = repeats and places[-1] == len(schema.inputs) - 1
        if len(places) > 1 or repeated:
            groups.append((tuple(places), repeated))
    return tuple(groups)
