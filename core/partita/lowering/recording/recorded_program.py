"""A program with expressions in place of numbers, and its instances for concrete sizes.

An instance costs evaluating the expressions and copying the steps.
"""

from __future__ import annotations

import abc
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from partita.errors import CompileError
from partita.lowering.program import (
    Arguments,
    Array,
    Continuation,
    Operand,
    OpRecord,
    Packed,
    Program,
    Recorded,
    Step,
    bytes_of_calls,
)
from partita.lowering.recording.later_steps import Later, LaterOffsets
from partita.lowering.shapes.symbolic_size import Recording, Size, holds_sizes, present
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
        form = _Form(recording.count)
        self._inputs = form.places(program.inputs)
        self._outputs = form.places(program.outputs)
        self._owned = form.places(program.owned)
        self._offsets = form.places(program.offsets), form.places(program.offsets.values())
        self._arena_bytes = form.place(program.arena_bytes)
        self._rest: tuple[Continuation, _Places] | None = None
        if program.rest is not None:
            self._rest = program.rest, form.places(program.rest.inputs)
        self._places = array("i")
        self._starts = array("i")
        self._steps: list[Step | _StepForm] = []
        for step in program.steps:
            self._starts.append(len(self._places))
            self._steps.append(form.step(step, self._places))
        self._works = form.places(step.work for step in program.steps)
        self._late = form.places(operand for step in program.steps for operand in step.results)
        self._whens = [
            (number, form.place(step.when))
            for number, step in enumerate(program.steps)
            if holds_sizes(step.when)
        ]
        form.finish()
        self._form = form
        self._asked: _Asked | None = None
        self._kept_bytes = bytes_of_calls(program.steps, program.ops) + form.table_bytes

    def program(self, before: Sequence[Any]) -> Program | None:
        """The program for other sizes; ``None`` if something is decided otherwise for them.

        Args:
            before: Numbers of the class of shapes.
        """
        numbers = self._recording.go_on(before)
        if numbers is None:
            return None
        filled = self._form.filled(numbers)
        lock = InterruptSafeLock()
        rest = None
        if self._rest is not None:
            template, places = self._rest
            rest = Continuation(template.specializer, _made(filled, places), template.outputs)
        recorded = Recorded(
            self._made,
            numbers,
            works=partial(_those, filled, self._works),
            idle=[number for number, place in self._whens if not numbers[place]],
            late=frozenset(_made(filled, self._late)),
            addresses=partial(self._addresses, filled, lock),
        )
        return Program(
            inputs=Later(len(self._inputs), partial(self._input, filled), lock),
            outputs=_made(filled, self._outputs),
            steps=Later(len(self._steps), partial(self._step, filled), lock),
            offsets=LaterOffsets(partial(self._places_in_arena, filled), lock),
            arena_bytes=filled[self._arena_bytes],
            owned=_made(filled, self._owned),
            ops=self._ops,
            rest=rest,
            kept_bytes=self._kept_bytes,
            recorded=recorded,
        )

    def _input(self, filled: list[Any], index: int) -> Operand:
        operand: Operand = _thing(filled, self._inputs[index])
        return operand

    def _step(self, filled: list[Any], number: int) -> Step:
        """A step of a program."""
        step = self._steps[number]
        if not isinstance(step, _StepForm):
            return step
        first = self._starts[number]
        count = 3 + step.args + step.results
        fn, work, when, *rest = _made(filled, self._places[first : first + count])
        args, results = tuple(rest[: step.args]), tuple(rest[step.args :])
        return Step(fn, args, step.op, step.shares, work, results, step.cleared, when=when)

    def _places_in_arena(self, filled: list[Any]) -> dict[Operand, int]:
        """Where the operands of a program lie."""
        operands, offsets = (_made(filled, places) for places in self._offsets)
        return dict(zip(operands, offsets, strict=True))

    def _addresses(self, filled: list[Any], lock: InterruptSafeLock, arguments: Arguments) -> Array:
        """Where constant arguments lie, of which no operands have to be made."""
        asked = self._asked
        if asked is None or asked.arguments is not arguments:
            asked = self._asked = self._ask(arguments)
        found: Array = asked.distances + data_address(self._form.tables(filled))
        with lock:  # of arrays that two requests made, one would be gone
            for index, place, given in asked.others:
                found[index] = data_address(given if place < 0 else _thing(filled, place))
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
        if not isinstance(step, _StepForm):
            return -1, step.args[position].const
        place = self._places[self._starts[number] + 3 + position]
        thing = self._form.thing(place)
        return (thing.const, None) if isinstance(thing, _OperandForm) else (-1, thing.const)


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


_Getter = Callable[[Sequence[Any]], tuple[Any, ...]]

_Places = Sequence[int]
"""Numbers in few bytes: a decoder has ten thousand of them, in each of its recorded programs."""


def _those(filled: Sequence[Any], places: Iterable[int]) -> tuple[Any, ...]:
    return tuple(map(filled.__getitem__, places))


def _made(filled: list[Any], places: Iterable[int]) -> tuple[Any, ...]:
    """The things at these places, made if nobody has asked for them before."""
    return tuple(_thing(filled, place) for place in places)


def _thing(filled: list[Any], place: int) -> Any:
    thing = filled[place]
    if isinstance(thing, _PerSizeValue):
        thing = filled[place] = thing(filled)
    return thing


def _getter(places: Sequence[int]) -> _Getter:
    """Takes the things at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return partial(_those, places=tuple(places))


class _StepForm(NamedTuple):
    """A step whose function or arguments depend on sizes.

    The places of its function, its work, whether it is called, its arguments and its results follow
    those of the step before, in one array for all steps.

    Attributes:
        args: How many arguments it has.
        op: As of a :class:`Step`.
        shares: The same.
        results: How many results it has.
        cleared: As of a :class:`Step`.
    """

    args: int
    op: OpRecord
    shares: bool
    results: int
    cleared: int


class _PerSizeValue(abc.ABC):
    """In the place of what is made for each size."""

    __slots__ = ()

    @abc.abstractmethod
    def __call__(self, filled: list[Any]) -> Any:
        """What stands there, made of what else there is."""


@dataclass(frozen=True, slots=True)
class _Made(_PerSizeValue):
    """Something that a function makes."""

    make: Callable[[list[Any]], Any]

    def __call__(self, filled: list[Any]) -> Any:
        """What the function makes."""
        return self.make(filled)


@dataclass(frozen=True, slots=True)
class _Table(_PerSizeValue):
    """A table, which is a part of memory that all of them share."""

    start: int
    size: int
    shape: tuple[int, ...]

    def __call__(self, filled: list[Any]) -> Array:
        """The table."""
        table: Array = filled[-1][self.start : self.start + self.size]
        return table if len(self.shape) == 1 else table.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class _OperandForm(_PerSizeValue):
    """An operand that depends on sizes; places, or -1 where there is nothing."""

    shape: _Getter
    dtype: np.dtype[Any]
    const: int
    base: int
    lasting: bool

    def __call__(self, filled: list[Any]) -> Operand:
        """The operand for numbers."""
        shape = self.shape(filled)
        elements = None if self.const < 0 else _thing(filled, self.const)
        if elements is not None and elements.shape != shape:
            elements = elements.reshape(shape)  # a view of what stood for a whole array
        return Operand(
            shape,
            self.dtype,
            elements,
            None if self.base < 0 else _thing(filled, self.base),
            self.lasting,
        )


class _Form:
    """What the arguments of steps are made of, in one list: each thing has its place in it.

    The numbers come first, then what is the same for all sizes, and what depends on them.

    Args:
        numbers: How many there are.
    """

    def __init__(self, numbers: int) -> None:
        self._numbers = numbers
        self._things: list[Any] = []
        self._known: dict[int, tuple[int, Any]] = {}
        self._getters: dict[tuple[int, ...], _Getter] = {}
        self._shared: dict[Any, int] = {}
        self._elements: list[Any] = []
        self._varying = np.zeros(0, np.int32)
        self._sources: _Places = ()
        self._template = np.zeros(0, np.int64)

    def finish(self) -> None:
        """Makes the tables' common memory; no thing gets a place after that."""
        varying = [n for n, element in enumerate(self._elements) if type(element) is Size]
        self._varying = np.array(varying, np.int32)
        self._sources = array("i", [self._elements[n].place for n in varying])
        numbers = [0 if type(element) is Size else element for element in self._elements]
        self._template = np.array(numbers, np.int64)
        self._known, self._elements = {}, []  # as much as all that is kept
        self._getters, self._shared = {}, {}

    @property
    def table_bytes(self) -> int:
        """What the tables take."""
        return self._template.nbytes

    def thing(self, place: int) -> Any:
        """What is the same for all sizes, or makes what depends on them."""
        return self._things[place - self._numbers]

    def filled(self, numbers: Sequence[Any]) -> list[Any]:
        """All things for these numbers, or what makes them: :func:`_thing`."""
        memory = self._template.copy()
        memory[self._varying] = _those(numbers, self._sources)
        return [*numbers, *self._things, memory]

    def tables(self, filled: list[Any]) -> Array:
        """The memory of all tables among these things, which are int64."""
        memory: Array = filled[-1]
        return memory

    def distance(self, place: int) -> int | None:
        """How many bytes behind the first table that at a place lies; ``None`` of other things."""
        table = self.thing(place) if place >= self._numbers else None
        return self._template.itemsize * table.start if isinstance(table, _Table) else None

    def step(self, step: Step, into: array[int]) -> Step | _StepForm:
        """A step, itself if it does not depend on sizes.

        Args:
            step: With symbolic sizes.
            into: Where the places of its parts are added, if it does.

        Raises:
            CompileError: It does in a way that is not known here.
        """
        fn, places = self.place(step.fn), self.places(step.args)
        fixed = all(map(self._is_fixed, (fn, *places))) and not holds_sizes((step.work, step.when))
        if fixed and not step.results:
            return step
        told = self.place(step.work), self.place(step.when)
        into.extend((fn, *told, *places, *self.places(step.results)))
        return _StepForm(len(places), step.op, step.shares, len(step.results), step.cleared)

    def places(self, things: Iterable[Any]) -> _Places:
        """Where things are."""
        return array("i", map(self.place, things))

    def place(self, thing: Any) -> int:
        """Where a thing is.

        Raises:
            CompileError: It depends on sizes in a way that is not known here.
        """
        if type(thing) is Size:
            return thing.place
        known = self._known.get(id(thing))
        if known is not None:
            return known[0]
        if isinstance(thing, Operand):
            found = self._operand(thing)
        elif not holds_sizes(thing):
            found = self._put(thing)
        elif isinstance(thing, np.ndarray):
            found = self.place(thing.item()) if _is_computed(thing) else self._table(thing)
        elif type(thing) in (tuple, list):
            kind, those = type(thing), self.places(thing)
            found = self._put(_Made(lambda filled: kind(_made(filled, those))))
        elif is_dataclass(thing) and not isinstance(thing, type):
            make = type(thing)
            these = self.places(getattr(thing, field.name) for field in fields(thing))
            found = self._put(_Made(lambda filled: make(*_made(filled, these))))
        else:
            raise CompileError(f"A step has something of type {type(thing)} that holds sizes.")
        self._known[id(thing)] = found, thing
        return found

    def _is_fixed(self, place: int) -> bool:
        return place >= self._numbers and not isinstance(
            self._things[place - self._numbers], _PerSizeValue
        )

    def _put(self, thing: Any) -> int:
        self._things.append(thing)
        return self._numbers + len(self._things) - 1

    def _shape(self, shape: Sequence[Any]) -> _Getter:
        """Takes a shape, which many operands have: the same function for all of them."""
        places = tuple(self.places(shape))
        return self._getters.setdefault(places, _getter(places))

    def _operand(self, operand: Operand) -> int:
        if isinstance(operand, Packed):
            return self._packed(operand)
        elements = -1 if operand.const is None else self._row(operand.const, operand.dtype)
        base = -1 if operand.base is None else self.place(operand.base)
        depends = any(place >= 0 and not self._is_fixed(place) for place in (elements, base))
        if not depends and not holds_sizes(operand.shape):
            return self._put(operand)
        shape = self._shape(operand.shape)
        form = _OperandForm(shape, operand.dtype, elements, base, operand.lasting)
        known = self._shared.get(form)
        if known is not None and elements >= 0:
            return known  # nobody writes to constants: equal ones are one
        place = self._put(form if known is None else self._things[known - self._numbers])
        self._shared.setdefault(form, place)
        return place

    def _row(self, const: Array, dtype: np.dtype[Any]) -> int:
        """The place of a constant's elements; tables, which have a memory in common, are int64."""
        if const.dtype != object or _is_computed(const) or dtype == np.int64:
            return self.place(const)
        known = self._known.get(id(const))
        if known is None:
            shape, places = const.shape, self.places(const.reshape(-1).tolist())
            made = _Made(lambda filled: np.array(_made(filled, places), dtype).reshape(shape))
            known = self._known[id(const)] = self._put(made), const
        return known[0]

    def _packed(self, operand: Packed) -> int:
        """The place of a packed weight, without its elements: these may go."""
        if not holds_sizes(operand.shape):
            return self._put(operand)
        shape = self._shape(operand.shape)
        return self._put(_Made(lambda filled: operand.viewed(shape(filled))))

    def _table(self, table: Array) -> int:
        elements = table.reshape(-1).tolist()
        same = table.shape, tuple((type(e), e.place if type(e) is Size else e) for e in elements)
        known = self._shared.get(same)
        if known is not None:
            return known
        place = self._put(_Table(len(self._elements), len(elements), table.shape))
        self._shared[same] = place
        self._elements += elements
        return place


def _is_computed(const: Array) -> bool:
    """Whether a constant stands for a whole array, as :meth:`Builder.computed` makes it."""
    return const.ndim == 0 and isinstance(present(const.item()), np.ndarray)
