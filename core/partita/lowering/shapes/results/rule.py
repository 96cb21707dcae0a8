"""How rules are written down that tell what an operator's results are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.program import Operand

Operands = Sequence[Operand | None]
"""By input what is known of it; ``None`` for one that is left out."""

Rule = Callable[[Node, Any], Sequence[int] | None]
"""The shape of the one output, or ``None`` if that is not as usual."""

RuleOfSeveral = Callable[[Node, Any], Sequence[Operand] | None]
"""Stand-ins for all outputs, or ``None`` if they are not as usual."""


class ResultRules:
    """The rules of one family of operators.

    Attributes:
        shapes: By operator the shape of its one output.
        several: By operator stand-ins for all of its outputs, whose types they tell too.
    """

    def __init__(self) -> None:
        self.shapes: dict[str, Rule] = {}
        self.several: dict[str, RuleOfSeveral] = {}

    def shape(self, *kinds: str) -> Callable[[Rule], Rule]:
        """Enters a function that tells the shape of the one output of these operators."""
        return entered_in(self.shapes, *kinds)

    def outputs(self, *kinds: str) -> Callable[[RuleOfSeveral], RuleOfSeveral]:
        """Enters a function that makes stand-ins for all outputs of these operators."""
        return entered_in(self.several, *kinds)


def elements_of(operand: Operand | None) -> list[int] | None:
    """The elements of an operand in order; ``None`` if they are not known, or it is left out."""
    return None if operand is None or operand.const is None else operand.const.reshape(-1).tolist()


def any_unknown(*operands: Operand | None) -> bool:
    """Whether elements of an operand that is given are only known when the program runs."""
    return any(operand is not None and operand.const is None for operand in operands)


def number_of(operand: Operand | None) -> Any:
    """The one element of an operand; ``None`` if it is not known, or the operand is left out."""
    return None if operand is None or operand.const is None else operand.const.item()
