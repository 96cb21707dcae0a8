"""Operators that call subgraphs, and variables that stay from run to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.tflite.translator import Scope, Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


def _given(at: Site, first: int) -> list[ir.Value]:
    return [at.value(index) for index in range(first, len(at.inputs))]


@translates("IF")
def if_(at: Site) -> Sequence[ir.Value]:
    """One of two subgraphs; both read the values around them directly."""
    count = len(at.operator.outputs)
    branches: dict[str, Any] = {}
    for name in ("Then", "Else"):
        scope: Scope = at.scope.body()
        outputs = scope.called(at.integer(f"{name}SubgraphIndex"), _given(at, 1))
        if len(outputs) != count:
            raise at.error(f"its {name.lower()} branch returns {len(outputs)} tensors, not {count}")
        branches[f"{name.lower()}_branch"] = scope.graph([], outputs, f"{at.operator.code}/{name}")
    condition = at.reshaped(at.value(0), [])
    return at.emit_many("If", count, condition, **branches)


@translates("WHILE")
def while_(at: Site) -> Sequence[ir.Value]:
    """A subgraph run again and again as long as another says so."""
    import onnx_ir as ir

    condition, body = at.integer("CondSubgraphIndex"), at.integer("BodySubgraphIndex")
    first = at.reshaped(_single(at, at.scope.called(condition, _given(at, 0))), [])
    scope = at.scope.body()
    inside = scope.given(body)
    handed = scope.called(body, inside)
    if not len(handed) == len(inside) == len(at.inputs) == len(at.operator.outputs):
        raise at.error("its body does not return what it is given")
    again = _single(at, scope.called(condition, handed))
    shape = scope.initializer(ir.Tensor(np.array([], np.int64)), f"{at.target().name}/shape")
    again = scope.write("Reshape", [again, shape], {}, 1)[0]
    again.name = scope.fresh(f"{at.target().name}/again")
    kinds = {"iteration": ir.DataType.INT64, "running": ir.DataType.BOOL}
    counters = [
        ir.Value(
            name=scope.fresh(f"{at.target().name}/{name}"),
            type=ir.TensorType(kind),
            shape=ir.Shape([]),
        )
        for name, kind in kinds.items()
    ]
    for value, tensor in zip(inside, at.operator.inputs, strict=True):
        if any(dim < 0 for dim in at.tensors[tensor].dims):
            value.shape = None  # what the body hands on may have other sizes
    graph = scope.graph([*counters, *inside], [again, *handed], "WHILE/body")
    return at.emit_many("Loop", len(handed), None, first, *_given(at, 0), body=graph)


def _single(at: Site, values: list[ir.Value]) -> ir.Value:
    if len(values) != 1:
        raise at.error(f"its condition returns {len(values)} tensors, not one")
    return values[0]


@translates("CALL")
def call(at: Site) -> Sequence[ir.Value]:
    """A subgraph, written where it is called."""
    return at.scope.called(at.integer("Subgraph"), _given(at, 0))


@translates("STABLEHLO_COMPOSITE")
def composite(at: Site) -> Sequence[ir.Value]:
    """An operator that the file defines by a subgraph."""
    return at.scope.called(at.integer("DecompositionSubgraphIndex"), _given(at, 0))


@translates("CALL_ONCE")
def call_once(at: Site) -> Sequence[ir.Value]:
    """A subgraph that assigns what variables begin with."""
    at.scope.call_once(at.integer("InitSubgraphIndex"))
    return []


@translates("VAR_HANDLE")
def var_handle(at: Site) -> ir.Value:
    """The name of a variable, which operators that read or assign it are given."""
    import onnx_ir as ir

    return ir.Value(name=at.scope.document.variable(at.operator))


@translates("READ_VARIABLE")
def read_variable(at: Site) -> ir.Value:
    """What a variable is."""
    name = str(at.value(0).name)
    return at.scope.state(name, at.target(), name in at.scope.document.assigned_variables)


@translates("ASSIGN_VARIABLE")
def assign_variable(at: Site) -> Sequence[ir.Value]:
    """What a variable becomes."""
    at.scope.assign(str(at.value(0).name), at.value(1))
    return []
