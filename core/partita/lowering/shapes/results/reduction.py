"""Results of reductions, and of searches for the largest and smallest elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering.geometry.axes import axis_of
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.results.rule import ResultRules, any_unknown, elements_of

_INT64 = np.dtype(np.int64)


REDUCTION_RESULTS = ResultRules()


@REDUCTION_RESULTS.shape(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
)
def _reduce(node: Node, operands: Sequence[Operand]) -> Sequence[int] | None:
    shape, given = operands[0].shape, operands[1] if len(operands) > 1 else None
    if any_unknown(given):
        return None
    axes = node.attrs.get("axes") if given is None else elements_of(given)
    if not axes:
        if node.attrs.get("noop_with_empty_axes", 0):
            return shape
        axes = range(len(shape))
    gone = {axis_of(node, axis, len(shape)) for axis in axes}
    if node.attrs.get("keepdims", 1):
        return [1 if axis in gone else size for axis, size in enumerate(shape)]
    return [size for axis, size in enumerate(shape) if axis not in gone]


@REDUCTION_RESULTS.shape("ArgMax", "ArgMin")
def _arg(node: Node, operands: Any) -> Sequence[int]:
    shape = list(operands[0].shape)
    axis = axis_of(node, node.attrs.get("axis", 0), len(shape))
    return [*shape[:axis], *[1][: node.attrs.get("keepdims", 1)], *shape[axis + 1 :]]


@REDUCTION_RESULTS.outputs("TopK")
def _top_k(node: Node, operands: Any) -> Sequence[Operand] | None:
    x, k = operands[0], node.attrs.get("k")
    if node.version >= 10:
        found = elements_of(operands[1])
        k = found[0] if found else None
    axis = axis_of(node, node.attrs.get("axis", -1), x.ndim)
    if k is None or k > x.shape[axis]:
        return None
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [Operand(shape, x.dtype), Operand(shape, _INT64)]
