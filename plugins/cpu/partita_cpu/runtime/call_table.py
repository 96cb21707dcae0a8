"""The call table of a bound program: one row per step, which a thread pool walks.

A row has the trampoline's address, the address of the step's slots (`call_layout`), the number of
threads that share it, and what to clear before. Steps that only Python can call split the table
into segments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from partita.lowering import Array, Program
from partita.tensors.array_state import data_address
from partita_cpu.jit.kernel_wrappers import Checked
from partita_cpu.jit.trampoline import idle_trampoline
from partita_cpu.runtime.call_layout import CallLayout
from partita_cpu.threads.thread_pool import Rows, ThreadPool, raise_failure

SHARED_WORK = 1 << 15
"""Steps below this work (bytes or operations) are done sooner than they are handed out."""

WAKING_WORK = 1 << 18
"""Runs of steps none of which has this work do not wake the other threads."""

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Memory(Protocol):
    """Where the operands of a program lie."""

    def arguments(self, number: int) -> Sequence[Any]:
        """The arguments of a step: arrays in place of operands, but for inputs."""


class CallTable:
    """The calls of one program on one request's memory, in the form that a thread pool walks.

    Args:
        program: The program.
        layout: The layout of their calls.
        slots: The arguments of all calls, as the layout has them.
        pool: The threads.
        memory: Where the arguments of a step that failed are read, for its error.
    """

    def __init__(
        self,
        program: Program,
        layout: CallLayout,
        slots: Array,
        pool: ThreadPool,
        memory: Memory,
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._program = program
        self._slots = slots
        self._words = slots.data
        self._layout = layout  # which keeps arrays whose addresses are in the slots
        self._places = layout.patched
        self._is_native = layout.is_native
        start = data_address(slots)
        rows = self._rows = layout.rows.copy()
        rows[:, 1] += start
        numbers, cleared = layout.cleared
        rows[numbers, 3] = slots[cleared]
        idle = list(program.idle)
        if idle:
            rows[idle] = idle_trampoline(), start, 0, 0, 0
        wakes = None if pool.size == 1 else self._share(program.works, idle)
        self._address = data_address(rows)
        self._segments = [
            _Steps(
                first,
                last,
                Rows(
                    self._address, first, last, wakes is not None and bool(wakes[first:last].any())
                )
                if layout.is_native[first]
                else None,
            )
            for first, last in layout.segments
        ]
        self._single: dict[int, Rows] = {}

    def _share(self, work: Array, idle: Sequence[int]) -> Array:
        """Has threads share large steps; which of these are worth waking threads for."""
        work[idle] = 0
        self._rows[:, 2] = self._pool.size * (work >= SHARED_WORK)
        wakes: Array = work >= WAKING_WORK
        return wakes

    def can_patch(self, number: int, position: int) -> bool:
        """Whether :meth:`patch` can change an argument."""
        return (number, position) in self._places

    def put(self, slots: Sequence[int], address: int) -> None:
        """Writes the address of an array, which the caller keeps, to slots."""
        for slot in slots:
            self._words[slot] = address

    def patch(self, number: int, position: int, array: Array) -> bool:
        """Lets a step use the memory of another array; ``False`` if Python calls the step.

        The caller keeps the array, and sees to it that it has the size of the old one.
        """
        place = self._places.get((number, position))
        if place is None:
            return False
        self._words[place] = data_address(array)
        return True

    def run(self, calls: Mapping[int, Call]) -> None:
        """Runs all steps; `calls` are those for Python, by number."""
        for segment in self._segments:
            if segment.rows is not None:
                self._pool.run(segment.rows, self.explain_failure)
            else:
                fn, args = calls[segment.first]
                fn(*args)

    def run_one(self, number: int, calls: Mapping[int, Call]) -> None:
        """Runs one step as :meth:`run` would; `calls` are those for Python."""
        if self._is_native[number]:
            rows = self._single.get(number)
            if rows is None:
                shared = bool(self._rows[number, 2])
                rows = self._single[number] = Rows(self._address, number, number + 1, shared)
            self._pool.run(rows, self.explain_failure)
        else:
            fn, args = calls[number]
            fn(*args)

    def explain_failure(self, number: int) -> None:
        """Raises what a step that failed has to say, if anything."""
        kernel = self._program.steps[number].fn
        if isinstance(kernel, Checked):
            kernel.explain(*self._memory.arguments(number))

    def segments(self, calls: Mapping[int, Call], keep: object) -> list[Segment]:
        """What :meth:`run` does with the arrays that are in their places now, to be called later.

        Args:
            calls: Those for Python, by number.
            keep: What holds the arrays.
        """
        return [
            NativeSegment(self._pool, segment.rows, self.explain_failure, keep)
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
