"""What the parts of a recorded program are made of, for any sizes: numbers, and what holds them."""

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
from partita.lowering.program import Array, Operand, OpRecord, Packed, Step
from partita.lowering.shapes.size_arithmetic import Numbers
from partita.lowering.shapes.symbolic_size import Size, holds_sizes, present

_Getter = Callable[[Sequence[Any]], tuple[Any, ...]]

Places = Sequence[int]
"""Numbers in few bytes: a decoder has ten thousand of them, in each of its recorded programs."""


def _those(filled: Sequence[Any], places: Iterable[int]) -> tuple[Any, ...]:
    return tuple(map(filled.__getitem__, places))


def made_of(filled: list[Any], places: Iterable[int]) -> tuple[Any, ...]:
    """The things at these places, made if nobody has asked for them before."""
    return tuple(thing_at(filled, place) for place in places)


def thing_at(filled: list[Any], place: int) -> Any:
    """The thing at a place, made if nobody has asked for it before."""
    thing = filled[place]
    if isinstance(thing, _PerSizeValue):
        thing = filled[place] = thing(filled)
    return thing


def _getter(places: Sequence[int]) -> _Getter:
    """Takes the things at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return partial(_those, places=tuple(places))


class StepForm(NamedTuple):
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
class OperandForm(_PerSizeValue):
    """An operand that depends on sizes; places, or -1 where there is nothing."""

    shape: _Getter
    dtype: np.dtype[Any]
    const: int
    base: int
    lasting: bool

    def __call__(self, filled: list[Any]) -> Operand:
        """The operand for numbers."""
        shape = self.shape(filled)
        elements = None if self.const < 0 else thing_at(filled, self.const)
        if elements is not None and elements.shape != shape:
            elements = elements.reshape(shape)  # a view of what stood for a whole array
        return Operand(
            shape,
            self.dtype,
            elements,
            None if self.base < 0 else thing_at(filled, self.base),
            self.lasting,
        )


class ProgramForm:
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
        self._tables = Filling(())

    def finish(self) -> None:
        """Makes the tables' common memory; no thing gets a place after that."""
        self._tables = Filling(self._elements)
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

    def filled(self, numbers: Numbers) -> list[Any]:
        """All things by their places, or what makes them, and the tables' memory at the end."""
        return [*numbers.listed(), *self._things, self._tables.array(numbers)]

    def step(self, step: Step, into: array[int]) -> Step | StepForm:
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
        return StepForm(len(places), step.op, step.shares, len(step.results), step.cleared)

    def places(self, things: Iterable[Any]) -> Places:
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
            found = self.place(thing.item()) if is_computed(thing) else self._table(thing)
        elif type(thing) in (tuple, list):
            kind, those = type(thing), self.places(thing)
            found = self._put(_Made(lambda filled: kind(made_of(filled, those))))
        elif is_dataclass(thing) and not isinstance(thing, type):
            make = type(thing)
            these = self.places(getattr(thing, field.name) for field in fields(thing))
            found = self._put(_Made(lambda filled: make(*made_of(filled, these))))
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
        form = OperandForm(shape, operand.dtype, elements, base, operand.lasting)
        known = self._shared.get(form)
        if known is not None and elements >= 0:
            return known  # nobody writes to constants: equal ones are one
        place = self._put(form if known is None else self._things[known - self._numbers])
        self._shared.setdefault(form, place)
        return place

    def _row(self, const: Array, dtype: np.dtype[Any]) -> int:
        """The place of a constant's elements; tables, which have a memory in common, are int64."""
        if const.dtype != object or is_computed(const) or dtype == np.int64:
            return self.place(const)
        known = self._known.get(id(const))
        if known is None:
            shape, places = const.shape, self.places(const.reshape(-1).tolist())
            made = _Made(lambda filled: np.array(made_of(filled, places), dtype).reshape(shape))
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


def is_computed(const: Array) -> bool:
    """Whether a constant stands for a whole array, as :meth:`Builder.computed` makes it."""
    return const.ndim == 0 and isinstance(present(const.item()), np.ndarray)


class Filling:
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
