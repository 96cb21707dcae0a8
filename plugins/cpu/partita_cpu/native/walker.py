"""A bound program as a table of kernel calls that a crew walks; what Python must call stays so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.lowering import Array, Step
from partita_cpu.entry import entry_point, kernel_of, signature_of
from partita_cpu.native.crew import ROW, WORDS, Crew
from partita_cpu.native.trampoline import Entry, entry, fill

SHARED_WORK = 1 << 15
"""Steps below this work (bytes or operations) are done sooner than they are handed out."""

WAKING_WORK = 1 << 18
"""Runs of steps none of which has this work do not wake the other threads."""

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Walker:
    """The steps of one program on one request's memory.

    Args:
        steps: The program's steps.
        args: For each step its arguments, with arrays in place of operands. An array that is not
            known yet may be anything: :meth:`patch` brings it.
        crew: The threads.
    """

    def __init__(self, steps: Sequence[Step], args: Sequence[Sequence[Any]], crew: Crew) -> None:
        self._crew = crew
        self._memory = np.zeros(WORDS + 8, np.int64)
        self._block = self._memory.ctypes.data
        self._block += -self._block % 64
        entries = [_entry(step) for step in steps]
        sizes = [0 if found is None else len(found.kinds) + 1 for found in entries]
        self._slots = np.zeros(sum(sizes), np.int64)
        self._table = np.zeros((len(steps), ROW), np.int64)
        self._places: dict[tuple[int, int], int] = {}
        self._kept = args
        at = 0
        for number, (found, size) in enumerate(zip(entries, sizes, strict=True)):
            if found is None:
                continue
            slots = self._slots[at : at + size]
            known = [_stand_in(arg) for arg in args[number]]
            for position, place in enumerate(fill(slots, found, known)):
                self._places[number, position] = at + place
            shares = crew.size if crew.size > 1 and steps[number].work >= SHARED_WORK else 0
            self._table[number] = found.trampoline, slots.ctypes.data, shares
            at += size
        self._rows: int = self._table.ctypes.data
        self._parts = self._cut(steps, entries)

    def patch(self, number: int, position: int, array: Array) -> bool:
        """Lets a step use the memory of another array; ``False`` if Python calls the step.

        The caller keeps the array, and sees to it that it has the size of the old one.
        """
        place = self._places.get((number, position))
        if place is None:
            return False
        self._slots[place] = array.__array_interface__["data"][0]
        return True

    def run(self, calls: Sequence[Call]) -> None:
        """Runs all steps; `calls` are those for Python, by number."""
        for first, last, shared in self._parts:
            if last > first:
                self._crew.run(self._rows, first, last, shared, self._block)
            else:
                fn, args = calls[first]
                fn(*args)

    def run_one(self, number: int, calls: Sequence[Call]) -> None:
        """Runs one step as :meth:`run` would; `calls` are those for Python."""
        if self._table[number, 0]:
            shared = bool(self._table[number, 2])
            self._crew.run(self._rows, number, number + 1, shared, self._block)
        else:
            fn, args = calls[number]
            fn(*args)

    def stretches(self, calls: Sequence[Call], keep: object) -> list[Stretch]:
        """What :meth:`run` does with the arrays that are in their places now, to be called later.

        Args:
            calls: Those for Python, by number.
            keep: What holds the arrays.
        """
        return [
            NativeStretch(self._crew, self._table[first:last].copy(), shared, self, keep)
            if last > first
            else functools.partial(calls[first][0], *calls[first][1])
            for first, last, shared in self._parts
        ]

    def _cut(
        self, steps: Sequence[Step], entries: Sequence[Entry | None]
    ) -> list[tuple[int, int, bool]]:
        """(first, last, whether to wake) of runs of rows; (number, number, ...) for Python."""
        parts = []
        number = 0
        while number < len(steps):
            last = number
            while last < len(steps) and entries[last] is not None:
                last += 1
            work = max((step.work for step in steps[number:last]), default=0)
            parts.append((number, last, work >= WAKING_WORK))
            number = max(last, number + 1)
        return parts


class NativeStretch:
    """Rows of a table, of one program or several, that a crew walks in one call.

    Args:
        crew: The threads.
        table: The rows; a copy of their own.
        shared: Whether it is worth it to wake the other threads.
        keep: Whatever must live as long, since rows hold addresses of it.
    """

    def __init__(self, crew: Crew, table: Array, shared: bool, *keep: object) -> None:
        self._crew, self._table, self._shared, self._keep = crew, table, shared, keep
        self._memory = np.zeros(WORDS + 8, np.int64)
        self._block: int = self._memory.ctypes.data
        self._block += -self._block % 64
        self._address: int = table.ctypes.data
        self._last = len(table)

    def __call__(self) -> None:
        """Walks the rows."""
        self._crew.run(self._address, 0, self._last, self._shared, self._block)

    def followed_by(self, other: Stretch) -> NativeStretch | None:
        """The rows of both; ``None`` if the other one is not for the same threads."""
        if not isinstance(other, NativeStretch) or other._crew is not self._crew:
            return None
        table = np.concatenate([self._table, other._table])
        shared = self._shared or other._shared
        return NativeStretch(self._crew, table, shared, *self._keep, *other._keep)


Stretch = NativeStretch | Callable[[], Any]
"""Part of a program: rows for a crew, or a call for Python."""


def _entry(step: Step) -> Entry | None:
    kernel = kernel_of(step)
    if not step.shares or step.results or not hasattr(kernel, "overloads"):
        return None
    entry_point(step)
    return entry(kernel, signature_of(step))


def _stand_in(arg: Any) -> Any:
    """An argument itself, or for an operand without memory an array of its shape and strides."""
    if hasattr(arg, "shape") and hasattr(arg, "root"):
        return np.lib.stride_tricks.as_strided(np.empty(1, arg.dtype), arg.shape, _strides(arg))
    return arg


def _strides(arg: Any) -> tuple[int, ...]:
    strides: list[int] = []
    step = arg.dtype.itemsize
    for dim in reversed(arg.shape):
        strides.insert(0, step)
        step *= dim
    return tuple(strides)
