"""The call table of a bound program: one row per step, which a thread pool walks.

A row has the trampoline's address, that of the step's arguments (`call_layout`), the number of
threads that share it, and what to clear before. Steps that only Python can call split the table
into segments. A program with other sizes is loaded into the same memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from partita.lowering import Array, Program
from partita.tensors.array_state import data_address
from partita_cpu.jit.trampoline import idle_trampoline
from partita_cpu.runtime.call_layout import CallLayout
from partita_cpu.threads.thread_pool import ROW, Rows, ThreadPool, raise_failure

SHARED_WORK = 1 << 15
"""Steps below this work (bytes or operations) are done sooner than they are handed out."""

WAKING_WORK = 1 << 18
"""Runs of steps none of which has this work do not wake the other threads."""

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class CallTable:
    """The calls of one program on one request's memory, in the form that a thread pool walks.

    Args:
        layout: The layout of their calls.
        pool: The threads.
        arena: Where intermediate tensors lie.
    """

    def __init__(self, layout: CallLayout, pool: ThreadPool, arena: int) -> None:
        self._layout = layout  # which keeps arrays whose addresses are in the memory
        self._pool = pool
        self._memory, self._fill = layout.new_memory(arena)
        self._words = self._memory.data
        self._places = layout.patched
        self._address = data_address(self._memory)
        steps = len(layout.is_native)
        self._rows = self._memory[: ROW * steps].reshape(steps, ROW)
        self._idle: list[tuple[int, Array]] = []  # rows of steps that are not called, as they were
        self._segments = [
            _Steps(first, last, Rows(self._address, first, last, False))
            if layout.is_native[first]
            else _Steps(first, last, None)
            for first, last in layout.segments
        ]

    def load(self, program: Program) -> None:
        """Has the table call the steps of a program that has its layout.

        Addresses of inputs and outputs are to be put again, but for those that are as before.
        """
        for number, row in self._idle:
            self._rows[number] = row
        self._fill(program)
        if self._idle or program.idle:
            self._idle = [(number, self._rows[number].copy()) for number in program.idle]
            for number, _ in self._idle:
                self._rows[number] = idle_trampoline(), self._address, 0, 0, 0
        if self._pool.size > 1:
            self._share(program.works)

    def _share(self, work: Array) -> None:
        """Has threads share large steps, and be woken where there are some that are worth it."""
        work[[number for number, _ in self._idle]] = 0
        self._rows[:, 2] = self._pool.size * (work >= SHARED_WORK)
        wakes = work >= WAKING_WORK
        for segment in self._segments:
            if segment.rows is not None:
                segment.rows.shared = bool(wakes[segment.first : segment.last].any())

    def can_patch(self, number: int, position: int) -> bool:
        """Whether :meth:`patch` can change an argument."""
        return (number, position) in self._places

    def put(self, places: Sequence[int], address: int) -> None:
        """Writes the address of an array, which the caller keeps, to places in the memory."""
        for place in places:
            self._words[place] = address

    def patch(self, number: int, position: int, array: Array) -> bool:
        """Lets a step use the memory of another array; ``False`` if Python calls the step.

        The caller keeps the array, and sees to it that it has the size of the old one.
        """
        place = self._places.get((number, position))
        if place is None:
            return False
        self._words[place] = data_address(array)
        return True

    def run(self, calls: Mapping[int, Call], explain: Callable[[int], None]) -> None:
        """Runs all steps.

        Args:
            calls: Those for Python, by number.
            explain: Called with the number of a step that failed; may raise an error that says
                more.
        """
        for segment in self._segments:
            if segment.rows is not None:
                self._pool.run(segment.rows, explain)
            else:
                fn, args = calls[segment.first]
                fn(*args)

    def run_one(
        self, number: int, calls: Mapping[int, Call], explain: Callable[[int], None]
    ) -> None:
        """Runs one step as :meth:`run` would."""
        if self._layout.is_native[number]:
            shared = bool(self._rows[number, 2])
            self._pool.run(Rows(self._address, number, number + 1, shared), explain)
        else:
            fn, args = calls[number]
            fn(*args)

    def segments(
        self, calls: Mapping[int, Call], explain: Callable[[int], None], keep: object
    ) -> list[Segment]:
        """What :meth:`run` does with the arrays that are in their places now, to be called later.

        Args:
            calls: Those for Python, by number.
            explain: As for :meth:`run`.
            keep: What holds the arrays.
        """
        return [
            NativeSegment(self._pool, segment.rows, explain, keep)
            if segment.rows is not None
            else functools.partial(calls[segment.first][0], *calls[segment.first][1])
            for segment in self._segments
        ]


class _Steps(NamedTuple):
    """A segment of the table; without rows, a step that Python calls."""

    first: int
    last: int
    rows: Rows | None


class NativeSegment:
    """Rows of a table that a thread pool walks in one call.

    Args:
        pool: The threads.
        rows: Calls that follow one another in the table, with the shares of each.
        explain: Called with the number of a row that failed; may raise an error that says more.
        keep: Whatever must live as long, since rows hold addresses of it.
    """

    def __init__(
        self, pool: ThreadPool, rows: Rows, explain: Callable[[int], None], keep: object
    ) -> None:
        self._pool, self._rows, self._explain, self._keep = pool, rows, explain, keep

    def __call__(self) -> None:
        """Walks the rows."""
        self._pool.run(self._rows, self._explain)

    def alone(self) -> Rows | None:
        """The rows, if one thread walks them; ``None`` if it has help."""
        return None if self._rows.shared and self._pool.size > 1 else self._rows

    def check(self) -> None:
        """Raises what the rows have to say, if they failed when one thread walked them.

        Raises:
            InferError: They did.
        """
        failed = self._rows.failed()
        if failed:
            raise_failure(failed, self._explain)


Segment = NativeSegment | Callable[[], Any]
"""Part of a program: rows for a thread pool, or a call for Python."""
