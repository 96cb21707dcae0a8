"""Results of operators that make tensors of numbers: ConstantOfShape and Range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.lowering.geometry.ranges import count_of_range
from partita.lowering.graph import Node
from partita.lowering.shapes.results.rule import ResultRules, elements_of

FILLING_RESULTS = ResultRules()


@FILLING_RESULTS.shape("ConstantOfShape")
def _constant_of_shape(node: Node, operands: Any) -> Sequence[int] | None:
    return elements_of(operands[0])


@FILLING_RESULTS.shape("Range")
def _range(node: Node, operands: Any) -> Sequence[int] | None:
    start, limit, step = (elements_of(x) for x in operands)
    if start is None or limit is None or step is None:
        return None
    return [count_of_range(start[0], limit[0], step[0])]
