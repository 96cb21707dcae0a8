"""Results of LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.results.rule import ResultRules

RECURRENT_RESULTS = ResultRules()


@RECURRENT_RESULTS.outputs("GRU", "LSTM", "RNN")
def _recurrent(node: Node, operands: Any) -> Sequence[Operand] | None:
    x, hidden = operands[0], operands[2].shape[2]
    if node.attrs.get("layout", 0):
        return None
    steps, batch, _ = x.shape
    directions = operands[1].shape[0]
    last = Operand((directions, batch, hidden), x.dtype)
    cells = Operand((directions, batch, hidden), x.dtype)
    whole = Operand((steps, directions, batch, hidden), x.dtype)
    return [whole, last, cells][: len(node.outputs)]
