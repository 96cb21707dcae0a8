"""Sketches: dry walks over a graph that infer shapes and constants, without making a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.lowering.emission.errors import blamed_on
from partita.lowering.emission.owner import Owner
from partita.lowering.emission.walk import Walk
from partita.lowering.graph import Graph, Node
from partita.lowering.program import Array, Operand, OpRecord, Spec
from partita.lowering.shapes.result_shapes import predicted
from partita.lowering.shapes.shape_class import KnownShapes
from partita.lowering.shapes.shape_rules import check_demands


class Sketch(Walk):
    """A walk that tells shapes and constants, and makes no program.

    Emitters are asked only where results are not as usual.

    Attributes:
        unfolded: The nodes that are left to be computed, in order.
    """

    unfolded: list[Node]

    def known(self) -> KnownShapes:
        """What it has found; to be called after :meth:`emit`."""
        folded = {
            value: operand
            for value, operand in self._env.items()
            if operand.is_constant and value.const is None
        }
        ops = []
        self.unfolded = []
        for node in self.walked:
            outputs = [value for value in node.outputs if value is not None]
            if outputs and all(value in folded for value in outputs):
                ops.append(OpRecord(node.name, node.op_type, node.origins, "constant"))
            else:
                self.unfolded.append(node)
        return KnownShapes(folded, ops, self.shapes())

    def _skips(self, node: Node, operands: Sequence[Operand | None]) -> bool:
        if all(operand is None or operand.is_constant for operand in operands):
            return False
        results = predicted(node, operands)
        if results is None:
            return False
        with blamed_on(node):
            self._target.find(node, operands)
        check_demands(node, operands)  # what the graph is rewritten by must fit
        for value, result in zip(node.outputs, results, strict=False):
            if value is not None:
                self._compare_type(value, result.dtype)
                self._env[value] = result
        return True


class PartialSketch(Sketch):
    """A sketch for present elements of inputs, whichever are asked for.

    Raises :class:`MoreValueInputs` until it is given all of them.

    Args:
        owner: Whose program it sketches.
        graph: What is walked.
        specs: Shape and element type of each input.
        values: By index of an input, the elements that are known so far.
    """

    def __init__(
        self, owner: Owner, graph: Graph, specs: Sequence[Spec], values: Mapping[int, Array]
    ) -> None:
        super().__init__(owner, graph, specs, values)
        self._derives = True
