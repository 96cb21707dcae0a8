"""A program with expressions in the place of numbers, and its instances for concrete sizes.

An instance costs evaluating the expressions and filling in what follows from them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partita.lowering.program import (
    Arguments,
    Array,
    Continuation,
    Operand,
    Program,
    Recorded,
    Step,
    bytes_of_calls,
)
from partita.lowering.recording.later_steps import Later, LaterOffsets
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
from partita.tensors.array_state import data_address


class RecordedProgram:
    """A program with expressions in the places of numbers.

    Args:
        program: The program, with symbolic sizes.
        recording: What they follow from.
        made: What the back-end made of the program; see :class:`partita.lowering.Target`.

    Raises:
        CompileError: There are sizes where none can be put in their place.
    """

    def __init__(self, program: Program, recording: Recording, made: Any) -> None:
        self._recording = recording
        self._made = made
        self._ops = program.ops
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
        self._late = form.places(operand for step in program.steps for operand in step.results)
        self._whens = [
            (number, form.place(step.when))
            for number, step in enumerate(program.steps)
            if holds_sizes(step.when)
        ]
        self._results = _Results(form, (*program.outputs, *program.owned))
        form.finish()
        self._form = form
        self._asked: _Asked | None = None
        self._kept_bytes = bytes_of_calls(program.steps, program.ops) + form.table_bytes

    def program(self, before: Numbers) -> Program | None:
        """The program for other sizes; ``None`` if something is decided otherwise for them.

        Args:
            before: Numbers of the class of shapes.
        """
        numbers = self._recording.go_on(before)
        if numbers is None:
            return None
        parts = _Parts(self._form, numbers, self._results.operands(numbers))
        rest = None
        if self._rest is not None:
            template, places = self._rest
            rest = Continuation(template.specializer, parts.those(places), template.outputs)
        recorded = Recorded(
            self._made,
            numbers.integers,
            works=partial(self._works.array, numbers),
            idle=[number for number, place in self._whens if not numbers[place]],
            late=frozenset(parts.those(self._late)),
            addresses=partial(self._addresses, parts),
        )
        return Program(
            inputs=Later(len(self._inputs), partial(self._input, parts), parts.lock),
            outputs=parts.those(self._outputs),
            steps=Later(len(self._steps), partial(self._step, parts), parts.lock),
            offsets=LaterOffsets(partial(self._places_in_arena, parts), parts.lock),
            arena_bytes=self._form.number(self._arena_bytes, numbers),
            owned=parts.those(self._owned),
            ops=self._ops,
            rest=rest,
            kept_bytes=self._kept_bytes,
            recorded=recorded,
        )

    def _input(self, parts: _Parts, index: int) -> Operand:
        operand: Operand = thing_at(parts.filled, self._inputs[index])
        return operand

    def _step(self, parts: _Parts, number: int) -> Step:
        """A step of a program."""
        step = self._steps[number]
        if not isinstance(step, StepForm):
            return step
        first = self._starts[number]
        count = 3 + step.args + step.results
        fn, work, when, *rest = made_of(parts.filled, self._places[first : first + count])
        args, results = tuple(rest[: step.args]), tuple(rest[step.args :])
        return Step(fn, args, step.op, step.shares, work, results, step.cleared, when=when)

    def _places_in_arena(self, parts: _Parts) -> dict[Operand, int]:
        """Where the operands of a program lie."""
        operands, offsets = (made_of(parts.filled, places) for places in self._offsets)
        return dict(zip(operands, offsets, strict=True))

    def _addresses(self, parts: _Parts, arguments: Arguments) -> Array:
        """Where constant arguments lie, of which no operands have to be made."""
        asked = self._asked
        if asked is None or asked.arguments is not arguments:
            asked = self._asked = self._ask(arguments)
        found: Array = asked.distances + data_address(parts.tables)
        for index, place, given in asked.others:
            if place < 0:
                found[index] = data_address(given)
                continue
            with parts.lock:  # of arrays that two requests made, one would be gone
                found[index] = data_address(parts.thing(place))
        return found

    def _ask(self, arguments: Arguments) -> _Asked:
        places = [self._place_of_elements(*argument) for argument in arguments]
        distances = [self._form.distance(place) for place, _ in places]
        return _Asked(
            arguments,
            np.array([distance or 0 for distance in distances], np.int64),
            [(n, *places[n]) for n, distance in enumerate(distances) if distance is None],
        )

    def _place_of_elements(self, number: int, position: int) -> tuple[int, Any]:
        """Where the elements of a constant argument are, or -1 and the elements themselves."""
        step = self._steps[number]
        if not isinstance(step, StepForm):
            return -1, step.args[position].const
        place = self._places[self._starts[number] + 3 + position]
        thing = self._form.thing(place)
        return (thing.const, None) if isinstance(thing, OperandForm) else (-1, thing.const)


class _Parts:
    """What a program for certain sizes is made of.

    Args:
        form: How it is made.
        numbers: What sizes come to.
        made: What is made of them already, by places.

    Attributes:
        tables: The memory of all tables.
        lock: Held by who makes something, so that it is there once.
    """

    __slots__ = ("_filled", "_form", "_given", "_numbers", "lock", "tables")

    def __init__(self, form: ProgramForm, numbers: Numbers, made: Mapping[int, Any]) -> None:
        self._form, self._numbers, self._given = form, numbers, made
        self.tables = form.tables(numbers)
        self.lock = InterruptSafeLock()
        self._filled: list[Any] | None = None

    @property
    def filled(self) -> list[Any]:
        """All things by their places, or what makes them: :func:`thing_at`."""
        if self._filled is None:
            with self.lock:
                if self._filled is None:
                    filled = self._form.filled(self._numbers, self.tables)
                    for place, made in self._given.items():
                        filled[place] = made
                    self._filled = filled
        return self._filled

    def thing(self, place: int) -> Any:
        """The thing at a place; what sizes come to is told without the others."""
        numbers = self._numbers
        return numbers[place] if place < len(numbers) else thing_at(self.filled, place)

    def those(self, places: Iterable[int]) -> tuple[Any, ...]:
        """The things at some places, most of which are made already."""
        made = self._given
        return tuple([made[n] if n in made else self.thing(n) for n in places])


class _Results:
    """The operands of results, which every new size needs; all are made at once.

    Args:
        form: Where they have places.
        operands: The operands with symbolic sizes. Those that are made of others are left out.
    """

    def __init__(self, form: ProgramForm, operands: Iterable[Operand | None]) -> None:
        sizes: list[Any] = []
        self._forms: dict[int, tuple[slice, np.dtype[Any], bool]] = {}
        for operand in operands:
            if operand is None or (place := form.place(operand)) in self._forms:
                continue
            thing = form.thing(place)
            if isinstance(thing, OperandForm) and thing.const < 0 and thing.base < 0:
                dims = slice(len(sizes), len(sizes) + operand.ndim)
                self._forms[place] = dims, operand.dtype, operand.lasting
                sizes += operand.shape
        self._sizes = Filling(sizes)

    def operands(self, numbers: Numbers) -> dict[int, Operand]:
        """The operands, by their places."""
        sizes = self._sizes.array(numbers).tolist()
        return {
            place: Operand(tuple(sizes[dims]), dtype, lasting=lasting)
            for place, (dims, dtype, lasting) in self._forms.items()
        }


class _Asked(NamedTuple):
    """How it is told where constant arguments lie.

    Attributes:
        arguments: Numbers of a step and of one of its arguments.
        distances: From the first table, in bytes, of those that are tables.
        others: The index of each other one, and the place or the array that it is.
    """

    arguments: Arguments
    distances: Array
    others: list[tuple[int, int, Any]]


def _as_work(work: Any) -> Any:
    """The work of a step in 64 bits."""
    return work if type(work) is Size else int(min(work, _MOST_WORK))


_MOST_WORK = 1 << 62
