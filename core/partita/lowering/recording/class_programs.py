"""Programs of one class of shapes: recorded once with symbolic sizes, or emitted for each shape.

Emitters are called once with symbolic sizes (:mod:`partita.lowering.shapes.symbolic_size`). If one
of them needs a size as a plain number, nothing is recorded, and programs are emitted for each
shape.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from partita.errors import CompileError
from partita.lowering.emission.owner import Owner, Sizes
from partita.lowering.emission.signals import MoreValueInputs, OtherShapes
from partita.lowering.emission.walk import Walk
from partita.lowering.graph import Graph, Value
from partita.lowering.program import Array, Program, ProgramMaker, Spec
from partita.lowering.recording.recorded_program import RecordedProgram
from partita.lowering.shapes.shape_class import ShapeClass
from partita.lowering.shapes.size_arithmetic import Numbers
from partita.lowering.shapes.symbolic_size import holds_sizes

_log = logging.getLogger(__name__)

RECORDINGS = 16
"""Programs that are recorded for a class of shapes: emitters choose otherwise for other sizes."""


class ClassPrograms:
    """Makes the programs of one class of shapes.

    Args:
        owner: Whose programs they are.
        shapes: The class.

    Attributes:
        needs_numbers: Whether emitters were asked for all sizes, and wanted the numbers.
        settled: Sizes that are one number in the whole class, as far as was decided when it was
            learned, or when emitters wanted numbers.
    """

    def __init__(self, owner: Owner, shapes: ShapeClass) -> None:
        self._owner = owner
        self._shapes = shapes
        self._recorded: list[RecordedProgram] = []
        self._left = RECORDINGS if owner.target.arrange is not None else 0
        self.needs_numbers = False
        self.settled = shapes.settled()

    def recorded(self, specs: Sequence[Spec], values: Mapping[int, Array]) -> Program | None:
        """The program by what was recorded with other sizes; ``None`` if there is nothing.

        Args:
            specs: Shape and type of every input.
            values: The elements of those that are known before a run.
        """
        numbers = self._shapes.numbers(specs, values) if self._recorded else None
        return None if numbers is None else self._instance(numbers)

    def program(self, specs: Sequence[Spec], values: Mapping[int, Array]) -> Program | None:
        """The program for inputs of these shapes; ``None`` if they are of another class.

        Args:
            specs: Shape and type of every input.
            values: The elements of those that are known before a run.

        Raises:
            OtherShapes: Emitters make other shapes than the class tells.
            CompileError: A node cannot be computed for these shapes.
        """
        numbers = self._shapes.numbers(specs, values)
        if numbers is None:
            return None
        found = self._instance(numbers)
        if found is not None:
            return found
        if self._left:
            self._left -= 1
            made = self._record(numbers)
            if made is not None:
                self._recorded.insert(0, made)
                return made.program(numbers)
            self._left = 0
            self.needs_numbers = not self._recorded
        known = self._shapes.known(numbers)
        graph = self._shapes.graph(numbers)
        return Walk(self._owner, graph, specs, values, before=known).run()

    def _instance(self, numbers: Numbers) -> Program | None:
        for recorded in self._recorded:
            found = recorded.program(numbers)
            if found is not None:
                self._recorded.remove(recorded)
                self._recorded.insert(0, recorded)  # the next sizes are often alike
                return found
        return None

    def _record(self, numbers: Numbers) -> RecordedProgram | None:
        """What emitters say for sizes that stand for others; ``None`` if they need numbers."""
        recording, sizes, inputs, values = self._shapes.fork(numbers)
        recording.varied = recording.varied or bool(self._recorded)
        graph, arrange = self._shapes.graph(sizes), self._owner.target.arrange
        try:
            known = self._shapes.known(sizes)
            program = Walk(_Recorder(self._owner), graph, inputs, values, before=known).run()
            made = None if arrange is None else arrange(program)
            if recording.exact:
                _log.debug("'%s' is emitted for each size: emitters need numbers", graph.name)
                return None
            return RecordedProgram(program, recording, made)
        except _REFUSALS as error:  # emitters see numbers next, and say what is wrong with them
            _log.debug("'%s' is emitted for each size: %r", graph.name, error)
            return None
        finally:
            self.settled = self._shapes.settled(recording)
            recording.close(for_good=True)


_REFUSALS = (
    *(CompileError, MoreValueInputs, OtherShapes),
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)
"""What a walk with symbolic sizes may raise: numpy and Python's own functions take no such size."""


class _Recorder:
    """The owner of a graph that is walked with symbolic sizes.

    Args:
        owner: The owner.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.target = owner.target
        self.known = owner.known
        self.derives = owner.derives
        self.repeated = owner.repeated
        self.computed = owner.computed
        self.weight = owner.weight
        self.allowance = owner.allowance

    def nested(
        self,
        graph: Graph,
        known: Mapping[Value, Array],
        value_inputs: Sequence[int] = (),
        derive_value_inputs: bool = False,
        repeated: bool = False,
        sizes: Sequence[Sizes] = (),
    ) -> ProgramMaker:
        """What makes the programs of a body, or of the rest, for all sizes.

        Args:
            graph: The body.
            known: Constants beyond those in the graph, for values that it reads.
            value_inputs: Indices of inputs whose elements tell programs apart from the start.
            derive_value_inputs: Whether more inputs may become value inputs.
            repeated: Whether it runs again and again with other elements, as a loop's body.
            sizes: Of a rest, its inputs' sizes; those that are numbers are so in all its programs.

        Raises:
            CompileError: It has constants that depend on sizes.
        """
        if holds_sizes(known):
            raise CompileError(f"A part of graph '{graph.name}' has constants made of sizes.")
        free = [_unknown(dims) for dims in sizes]
        return self._owner.nested(graph, known, value_inputs, derive_value_inputs, repeated, free)


def _unknown(sizes: Sizes) -> Sizes:
    """What numbers an input's sizes are in all programs of a recording."""
    return None if sizes is None else [n if type(n) is int else None for n in sizes]
