"""A program with expressions in place of numbers, and its instances for concrete sizes.

An instance costs evaluating the expressions and copying the steps.
"""

from __future__ import annotations

import abc
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from partita.lowering.shapes.size_arithmetic import Numbers
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
        self._works = _Filling(_as_work(step.work) for step in program.steps)
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
        operand: Operand = _thing(parts.filled, self._inputs[index])
        return operand

    def _step(self, parts: _Parts, number: int) -> Step:
        """A step of a program."""
        step = self._steps[number]
        if not isinstance(step, _StepForm):
            return step
        first = self._starts[number]
        count = 3 + step.args + step.results
        fn, work, when, *rest = _made(parts.filled, self._places[first : first + count])
        args, results = tuple(rest[: step.args]), tuple(rest[step.args :])
        return Step(fn, args, step.op, step.shares, work, results, step.cleared, when=when)

    def _places_in_arena(self, parts: _Parts) -> dict[Operand, int]:
        """Where the operands of a program lie."""
        operands, offsets = (_made(parts.filled, places) for places in self._offsets)
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
        if not isinstance(step, _StepForm):
            return -1, step.args[position].const
        place = self._places[self._starts[number] + 3 + position]
        thing = self._form.thing(place)
        return (thing.const, None) if isinstance(thing, _OperandForm) else (-1, thing.const)


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

    def __init__(self, form: _Form, numbers: Numbers, made: Mapping[int, Any]) -> None:
        self._form, self._numbers, self._given = form, numbers, made
        self.tables = form.tables(numbers)
        self.lock = InterruptSafeLock()
        self._filled: list[Any] | None = None

    @property
    def filled(self) -> list[Any]:
        """All things by their places, or what makes them: :func:`_thing`."""
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
        return numbers[place] if place < len(numbers) else _thing(self.filled, place)

    def those(self, places: Iterable[int]) -> tuple[Any, ...]:
        """The things at some places, most of which are made already."""
        made = self._given
        return tuple([made[n] if n in made else self.thing(n) for n in places])


class _Filling:
    """Integers, some of which are sizes.

    Args:
        numbers: The integers.
    """

    def __init__(self, numbers: Iterable[Any]) -> None:
        listed = list(numbers)
        varying = [n for n, number in enumerate(listed) if type(number) is Size]
        self._varying = np.array(varying, np.int32)
        self._sources = np.array([listed[n].place for n in varying], np.int32)
        fixed = [0 if type(number) is Size else number for number in listed]
        self._template = np.array(fixed, np.int64)

    @property
    def nbytes(self) -> int:
        """What an array takes."""
        return self._template.nbytes

    def array(self, numbers: Numbers) -> Array:
        """The integers for what sizes come to."""
        found = self._template.copy()
        found[self._varying] = numbers.integers[self._sources]
        return found


class _Results:
    """The operands of results, which every new size needs; all are made at once.

    Args:
        form: Where they have places.
        operands: The operands with symbolic sizes. Those that are made of others are left out.
    """

    def __init__(self, form: _Form, operands: Iterable[Operand | None]) -> None:
        sizes: list[Any] = []
        self._forms: dict[int, tuple[slice, np.dtype[Any], bool]] = {}
        for operand in operands:
            if operand is None or (place := form.place(operand)) in self._forms:
                continue
            thing = form.thing(place)
            if isinstance(thing, _OperandForm) and thing.const < 0 and thing.base < 0:
                dims = slice(len(sizes), len(sizes) + operand.ndim)
                self._forms[place] = dims, operand.dtype, operand.lasting
                sizes += operand.shape
        self._sizes = _Filling(sizes)

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


_WORD, _MOST_WORK = 8, 1 << 62

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
        self._tables = _Filling(())

    def finish(self) -> None:
        """Makes the tables' common memory; no thing gets a place after that."""
        self._tables = _Filling(self._elements)
        self._known, self._elements = {}, []  # as much as all that is kept
        self._getters, self._shared = {}, {}

    @property
    def table_bytes(self) -> int:
        """What the tables take."""
        return self._tables.nbytes

    def thing(self, place: int) -> Any:
        """What is the same for all sizes, or makes what depends on them."""
        return self._things[place - self._numbers]

    def number(self, place: int, numbers: Numbers) -> Any:
        """A number, which may be the same for all sizes."""
        return numbers[place] if place < self._numbers else self.thing(place)

    def filled(self, numbers: Numbers, tables: Array) -> list[Any]:
        """All things for these numbers, or what makes them: :func:`_thing`."""
        return [*numbers.listed(), *self._things, tables]

    def tables(self, numbers: Numbers) -> Array:
        """The memory of all tables."""
        return self._tables.array(numbers)

    def distance(self, place: int) -> int | None:
        """How many bytes behind the first table that at a place lies; ``None`` of other things."""
        table = self.thing(place) if place >= self._numbers else None
        return _WORD * table.start if isinstance(table, _Table) else None

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
