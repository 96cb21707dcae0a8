"""A bound program as a table of kernel calls that a crew walks; what Python must call stays so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.lowering import Array, Step
from partita_cpu.entry import entry_point, signature_of
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

    def patch(self, number: int, position: int, array: Array) -> None:
        """Lets a step use another array of the same shape and type."""
        place = self._places.get((number, position))
        if place is not None:
            self._slots[place] = array.__array_interface__["data"][0]

    def run(self, calls: Sequence[Call]) -> None:
        """Runs all steps; `calls` are those for Python, by number."""
        for first, last, shared in self._parts:
            if last > first:
                self._crew.run(self._rows, first, last, shared, self._block)
            else:
                fn, args = calls[first]
                fn(*args)

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


def _entry(step: Step) -> Entry | None:
    if not step.shares or step.results or not hasattr(step.fn, "overloads"):
        return None
    entry_point(step)
    return entry(step.fn, signature_of(step))


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
