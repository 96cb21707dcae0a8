"""What a walk needs from its caller: the owner of the program, and the operands of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from partita.lowering.graph import Graph, Value
from partita.lowering.program import Array, Operand, ProgramMaker
from partita.lowering.shapes.fold_allowance import FoldAllowance
from partita.lowering.shapes.symbolic_elements import is_table_of_sizes
from partita.lowering.shapes.symbolic_size import Number
from partita.lowering.target import Target

Sizes = Sequence[Number | None] | None
"""An input's sizes, ``None`` in the place of those that nobody knows; ``None`` if that is all."""


class Owner(Protocol):
    """Whose program a walk makes: the specializer of a graph.

    Attributes:
        target: The back-end's part.
        known: Constants beyond those in the graph.
        derives: Whether more inputs may become value inputs.
        repeated: Whether the graph is run again and again with other elements, as a loop's body.
        computed: The values that the graph's own operations compute.
    """

    target: Target
    known: dict[Value, Array]
    derives: bool
    repeated: bool
    computed: frozenset[Value]

    def weight(self, value: Value) -> Operand:
        """The operand of a constant of the graph."""

    def allowance(self) -> FoldAllowance:
        """What a program may fold."""

    def nested(
        self,
        graph: Graph,
        known: Mapping[Value, Array],
        value_inputs: Sequence[int] = (),
        derive_value_inputs: bool = False,
        repeated: bool = False,
        sizes: Sequence[Sizes] = (),
    ) -> ProgramMaker:
        """What makes the programs of a body of this graph, or of the rest of it.

        Args:
            graph: The body.
            known: Constants beyond those in the graph, for values that it reads.
            value_inputs: Indices of inputs whose elements tell programs apart from the start.
            derive_value_inputs: Whether more inputs may become value inputs.
            repeated: Whether it runs again and again with other elements, as a loop's body.
            sizes: Of a rest, what is known of its inputs' sizes for all sizes of the owner.
        """


class OperandScope:
    """The operands of values, by which a builder knows them.

    A builder that knew its walk would leave a cycle, and all that was walked in memory until
    cycles are looked for, which is seldom while a model is compiled.

    Args:
        owner: Whose program it becomes.

    Attributes:
        env: Operands of the values that were met.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.env: dict[Value, Operand] = {}

    def operand(self, value: Value) -> Operand:
        """The operand of a value; that of a constant is made when it is asked for."""
        operand = self.env.get(value)
        if operand is None:
            operand = self.env[value] = self._owner.weight(value)
        return operand

    def body(self, graph: Graph, captures: Sequence[Value]) -> ProgramMaker:
        """What makes the programs of a body, which takes what it captures as further inputs."""
        taken = [self.operand(value) for value in captures]
        known = {
            value: operand.const
            for value in graph.captures()
            if (operand := self.operand(value)).const is not None and operand not in taken
        }
        told = [len(graph.inputs) + n for n, one in enumerate(taken) if is_table_of_sizes(one)]
        return self._owner.nested(
            Graph([*graph.inputs, *captures], graph.outputs, graph.nodes, graph.name),
            known,
            told,
            derive_value_inputs=not self._owner.target.allow_split,
            repeated=True,
        )
