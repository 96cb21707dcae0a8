"""A bound program as a table of kernel calls that a crew walks; what Python must call stays so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from partita.lowering import Array, Step
from partita_cpu.jit.kernel_wrappers import Checked
from partita_cpu.jit.trampoline import Entry, fill
from partita_cpu.threads.thread_pool import ROW, Crew, Rows, raise_failure

SHARED_WORK = 1 << 15
"""Steps below this work (bytes or operations) are done sooner than they are handed out."""

WAKING_WORK = 1 << 18
"""Runs of steps none of which has this work do not wake the other threads."""

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Memory(Protocol):
    """Where the operands of a program lie."""

    def address(self, operand: Any) -> int:
        """Where an operand's elements start; 0 for what a run brings: :meth:`Walker.patch`."""

    def elements(self, arg: Any) -> Any:
        """The elements of an operand that has an address; anything else as it is."""


class Walker:
    """The steps of one program on one request's memory.

    Args:
        steps: The program's steps.
        entries: For each step how to call it, or ``None`` if Python does.
        args: For each step its arguments, with arrays in place of operands, or for steps that have
            an entry the operands.
        crew: The threads.
        memory: Where operands lie.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        entries: Sequence[Entry | None],
        args: Sequence[Sequence[Any]],
        crew: Crew,
        memory: Memory,
    ) -> None:
        self._crew = crew
        self._memory = memory
        sizes = [0 if found is None else found.slots for found in entries]
        self._slots = np.zeros(sum(sizes), np.int64)
        self._table = np.zeros((len(steps), ROW), np.int64)
        self._places: dict[tuple[int, int], int] = {}
        self._kernels = [step.fn for step in steps]
        self._kept = args
        start, words = self._slots.ctypes.data, self._slots.data
        at = 0
        rows = []
        for number, (found, size) in enumerate(zip(entries, sizes, strict=True)):
            if found is None:
                rows.append((0, 0, 0))
                continue
            slots = self._slots[at : at + size]
            for position, place in enumerate(fill(slots, found, args[number], memory.address)):
                if place:
                    self._places[number, position] = at + place
            shares = crew.size if crew.size > 1 and steps[number].work >= SHARED_WORK else 0
            rows.append((found.trampoline, start + 8 * at, shares))
            at += size
        if rows:
            self._table[:] = rows
        self._words = words
        self._rows: int = self._table.ctypes.data
        self.taken = [found is not None for found in entries]
        self._parts = self._cut(steps)
        self._single: dict[int, Rows] = {}

    def reaches(self, number: int, position: int) -> bool:
        """Whether :meth:`patch` can change an argument."""
        return (number, position) in self._places

    def patch(self, number: int, position: int, array: Array) -> bool:
        """Lets a step use the memory of another array; ``False`` if Python calls the step.

        The caller keeps the array, and sees to it that it has the size of the old one.
        """
        place = self._places.get((number, position))
        if place is None:
            return False
        self._words[place] = array.__array_interface__["data"][0]
        return True

    def run(self, calls: Sequence[Call]) -> None:
        """Runs all steps; `calls` are those for Python, by number."""
        for part in self._parts:
            if part.rows is not None:
                self._crew.run(part.rows, self.explain)
            else:
                fn, args = calls[part.first]
                fn(*args)

    def run_one(self, number: int, calls: Sequence[Call]) -> None:
        """Runs one step as :meth:`run` would; `calls` are those for Python."""
        if self.taken[number]:
            rows = self._single.get(number)
            if rows is None:
                shared = bool(self._table[number, 2])
                rows = self._single[number] = Rows(self._rows, number, number + 1, shared)
            self._crew.run(rows, self.explain)
        else:
            fn, args = calls[number]
            fn(*args)

    def explain(self, number: int) -> None:
        """Raises what a step that failed has to say, if anything."""
        kernel = self._kernels[number]
        if isinstance(kernel, Checked):
            kernel.explain(*map(self._memory.elements, self._kept[number]))

    def stretches(self, calls: Sequence[Call], keep: object) -> list[Stretch]:
        """What :meth:`run` does with the arrays that are in their places now, to be called later.

        Args:
            calls: Those for Python, by number.
            keep: What holds the arrays.
        """
        return [
            NativeStretch(self._crew, part.rows, self.explain, keep)
            if part.rows is not None
            else functools.partial(calls[part.first][0], *calls[part.first][1])
            for part in self._parts
        ]

    def _cut(self, steps: Sequence[Step]) -> list[_Part]:
        """Runs of rows, and single steps for Python."""
        parts = []
        number = 0
        while number < len(steps):
            last = number
            while last < len(steps) and self.taken[last]:
                last += 1
            rows = None
            if last > number:
                shared = max(step.work for step in steps[number:last]) >= WAKING_WORK
                rows = Rows(self._rows, number, last, shared)
            parts.append(_Part(number, last, rows))
            number = max(last, number + 1)
        return parts


class _Part(NamedTuple):
    first: int
    last: int
    rows: Rows | None


class NativeStretch:
    """Rows of a table that a crew walks in one call.

    Args:
        crew: The threads.
        rows: Calls that follow one another in the table, with the shares of each.
        explain: Told the number of a row that failed; may raise an error that says more.
        keep: Whatever must live as long, since rows hold addresses of it.
    """

    def __init__(
        self, crew: Crew, rows: Rows, explain: Callable[[int], None], keep: object
    ) -> None:
        self._crew, self._rows, self._explain, self._keep = crew, rows, explain, keep

    def __call__(self) -> None:
        """Walks the rows."""
        self._crew.run(self._rows, self._explain)

    def alone(self) -> Rows | None:
        """The rows, if one thread walks them; ``None`` if it has help."""
        return None if self._rows.shared and self._crew.size > 1 else self._rows

    def check(self) -> None:
        """Raises what the rows have to say, if they failed when one thread walked them.

        Raises:
            InferError: They did.
        """
        failed = self._rows.failed()
        if failed:
            raise_failure(failed, self._explain)


Stretch = NativeStretch | Callable[[], Any]
"""Part of a program: rows for a crew, or a call for Python."""
