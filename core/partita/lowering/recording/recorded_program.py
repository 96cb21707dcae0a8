"""A program with expressions in the place of numbers, and its instances for concrete sizes.

An instance costs evaluating the expressions; what they are in is made when somebody asks for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

from partita.lowering.program import (
    Array,
    Continuation,
    EmittedProgram,
    Operand,
    Program,
    Step,
    bytes_of_calls,
)
from partita.lowering.recording.later_steps import LaterOffsets, LaterSteps
from partita.lowering.recording.program_form import (
    Filling,
    OperandForm,
    Places,
    ProgramForm,
    StepForm,
    made_of,
    thing_at,
)
from partita.lowering.shapes.size_arithmetic import Numbers
from partita.lowering.shapes.symbolic_size import Recording, Size, holds_sizes
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_INSTANCE_BYTES = 1 << 10
"""About what Python keeps for an instance itself."""


class RecordedProgram:
    """A program with expressions in the places of numbers.

    Args:
        program: The program, with symbolic sizes.
        recording: What they follow from.
        made: What the back-end made of the program; see :class:`partita.lowering.Target`.

    Raises:
        CompileError: There are sizes where none can be put in their place.

    Attributes:
        made: As it was given.
        ops: The program's operations.
        is_direct: Whether its instances leave all outputs in their own memory.
        has_rest: Whether something runs after their steps.
        has_late: Whether steps tell shapes when they have run.
        whole_bytes: What keeping one costs of which all steps were made.
    """

    def __init__(self, program: Program, recording: Recording, made: Any) -> None:
        self._recording = recording
        self.made = made
        self.ops = program.ops
        self.is_direct = program.is_direct
        self.has_rest = program.rest is not None
        form = ProgramForm(recording.count)
        self._inputs = form.places(program.inputs)
        self._outputs = form.places(program.outputs)
        self._owned = form.places(program.owned)
        self._offsets = form.places(program.offsets), form.places(program.offsets.values())
        self._arena_bytes = form.place(program.arena_bytes)
        self._rest: tuple[Continuation, Places] | None = None
        if program.rest is not None:
            self._rest = program.rest, form.places(program.rest.inputs)
        self._places = array("i")
        self._starts = array("i")
        self._steps: list[Step | StepForm] = []
        for step in program.steps:
            self._starts.append(len(self._places))
            self._steps.append(form.step(step, self._places))
        self._works = Filling(_as_work(step.work) for step in program.steps)
        self._late = [number for number, step in enumerate(program.steps) if step.results]
        self._whens = [
            (number, form.place(step.when))
            for number, step in enumerate(program.steps)
            if holds_sizes(step.when)
        ]
        self.has_late = bool(self._late)
        form.finish()
        self._form = form
        self.whole_bytes = bytes_of_calls(program.steps, program.ops) + form.table_bytes

    def program(self, before: Numbers) -> Program | None:
        """The program for other sizes; ``None`` if something is decided otherwise for them.

        Args:
            before: Numbers of the class of shapes.
        """
        numbers = self._recording.go_on(before)
        if numbers is None:
            return None
        return Instance(self, numbers, self._form.number(self._arena_bytes, numbers))

    def whole(self, numbers: Numbers) -> EmittedProgram:
        """An instance with all that it has; steps and places are made when they are asked for."""
        lock = InterruptSafeLock()  # of things that two requests made, one would be gone
        filled = self._form.filled(numbers)
        rest = None
        if self._rest is not None:
            template, places = self._rest
            rest = Continuation(template.specializer, made_of(filled, places), template.outputs)
        return EmittedProgram(
            inputs=made_of(filled, self._inputs),
            outputs=made_of(filled, self._outputs),
            steps=LaterSteps(len(self._steps), partial(self._step, filled), lock),
            offsets=LaterOffsets(partial(self._places_in_arena, filled), lock),
            arena_bytes=thing_at(filled, self._arena_bytes),
            owned=made_of(filled, self._owned),
            ops=self.ops,
            rest=rest,
            kept_bytes=self.whole_bytes,
        )

    def late(self, whole: EmittedProgram) -> Set[Operand]:
        """The results of an instance's steps that tell their shapes when they have run."""
        return {operand for number in self._late for operand in whole.steps[number].results}

    def works(self, numbers: Numbers) -> Array:
        """The work of each step."""
        return self._works.array(numbers)

    def idle(self, numbers: Numbers) -> Sequence[int]:
        """The numbers of the steps that are not called."""
        return [number for number, place in self._whens if not numbers[place]]

    def place_of_elements(self, number: int, position: int) -> int:
        """The place of a constant argument's elements, without the operand; -1 if it has none."""
        step = self._steps[number]
        if not isinstance(step, StepForm):
            return -1
        thing = self._form.thing(self._places[self._starts[number] + 3 + position])
        return thing.const if isinstance(thing, OperandForm) else -1

    def _step(self, filled: list[Any], number: int) -> Step:
        """A step of a program."""
        step = self._steps[number]
        if not isinstance(step, StepForm):
            return step
        first = self._starts[number]
        count = 3 + step.args + step.results
        fn, work, when, *rest = made_of(filled, self._places[first : first + count])
        args, results = tuple(rest[: step.args]), tuple(rest[step.args :])
        return Step(fn, args, step.op, step.shares, work, results, step.cleared, when=when)

    def _places_in_arena(self, filled: list[Any]) -> dict[Operand, int]:
        """Where the operands of a program lie."""
        operands, offsets = (made_of(filled, places) for places in self._offsets)
        return dict(zip(operands, offsets, strict=True))


class Instance(Program):
    """The program for certain sizes, most of which is made when somebody asks for it.

    What machine code runs needs none of that. Calls of Python need theirs.

    Args:
        recorded: What it is an instance of.
        numbers: What sizes come to.
        arena_bytes: Size of the arena.
    """

    __slots__ = (
        *("_numbers", "_own_bytes", "_recorded", "_whole"),
        *("__weakref__", "arena_bytes", "facts", "made", "numbers", "ops"),
    )

    def __init__(self, recorded: RecordedProgram, numbers: Numbers, arena_bytes: int) -> None:
        self._recorded, self._numbers = recorded, numbers
        self._own_bytes = _INSTANCE_BYTES + numbers.nbytes
        self._whole: EmittedProgram | None = None
        self.arena_bytes = arena_bytes
        self.made, self.ops = recorded.made, recorded.ops
        self.numbers, self.facts = numbers.integers, None

    @property
    def whole(self) -> EmittedProgram:
        """All of it."""
        if self._whole is None:
            with _WHOLES:
                if self._whole is None:
                    self._whole = self._recorded.whole(self._numbers)
        return self._whole

    @property
    def inputs(self) -> Sequence[Operand]:
        """See :class:`Program`."""
        return self.whole.inputs

    @property
    def outputs(self) -> Sequence[Operand | None]:
        """See :class:`Program`."""
        return self.whole.outputs

    @property
    def steps(self) -> Sequence[Step]:
        """See :class:`Program`."""
        return self.whole.steps

    @property
    def offsets(self) -> Mapping[Operand, int]:
        """See :class:`Program`."""
        return self.whole.offsets

    @property
    def owned(self) -> Sequence[Operand | None]:
        """See :class:`Program`."""
        return self.whole.owned

    @property
    def rest(self) -> Continuation | None:
        """See :class:`Program`."""
        return self.whole.rest if self._recorded.has_rest else None

    @property
    def kept_bytes(self) -> int:
        """See :class:`Program`; with all that may be made of it later."""
        return self._own_bytes + self._recorded.whole_bytes

    @property
    def is_direct(self) -> bool:
        """See :class:`Program`."""
        return self._recorded.is_direct

    @property
    def late(self) -> Set[Operand]:
        """See :class:`Program`."""
        return self._recorded.late(self.whole) if self._recorded.has_late else frozenset()

    @property
    def works(self) -> Array:
        """See :class:`Program`."""
        return self._recorded.works(self._numbers)

    @property
    def idle(self) -> Sequence[int]:
        """See :class:`Program`."""
        return self._recorded.idle(self._numbers)

    def elements(self, number: int, position: int) -> Array:
        """See :class:`Program`; of what was computed of sizes no step is made."""
        place = self._recorded.place_of_elements(number, position)
        known = 0 <= place < len(self._numbers)
        elements: Array = self._numbers[place] if known else super().elements(number, position)
        return elements


_WHOLES = InterruptSafeLock()
"""Held by who makes all of an instance: of two, which requests would have, one would be gone."""


def _as_work(work: Any) -> Any:
    """The work of a step in 64 bits."""
    return work if type(work) is Size else int(min(work, _MOST_WORK))


_MOST_WORK = 1 << 62
