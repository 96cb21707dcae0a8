"""Programs that run at the same time: each thread walks those of its lanes, all in one call.

A lane is a list of programs that never run at the same time. Its thread takes the first one that
waits for nothing more, and tells those that wait for it when it ends. A thread with nothing to do
looks for a while, since most waits are short, lets others use its processor now and then, and
sleeps at last until a program ends.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import numpy as np

from partita.errors import CompileError, InferCancelledError, InferError
from partita.lowering import Array
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.intrinsics.atomics import (
    add,
    call_clock,
    call_share,
    call_system,
    load,
    pause,
    store,
)
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.trampoline import fill
from partita_cpu.system.linux import calls
from partita_cpu.threads.thread_pool import LOOKS, ROW, Crew, Rows, function_address

# Words of the shared memory; each on a cache line of its own. Behind them come for each program how
# many it waits for (-1 once it has begun), and then for each when it began and ended.
_EPOCH, _SLEEPING, _LEFT, _STATUS = 0, 8, 16, 24
_WAITING = 32
_STAMPS = 4
_FAILED, _CANCELLED = 1, 2

# Words of a program's row: its kernel calls and their number, its lane, who waits for it.
_CALLS, _COUNT, _LANE, _FIRST, _LAST = 0, 1, 2, 3, 4
_FIELDS = 5

_MONOTONIC = 1
_FUTEX = calls.futex
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


@jit(inline=True)
def _field(programs: int, number: int, field: int) -> int:
    found: int = load(programs + 8 * (_FIELDS * number + field))
    return found


@jit(inline=True)
def _waiting(sync: int, number: int) -> int:
    found: int = load(sync + 8 * (_WAITING + number))
    return found


@jit(inline=True)
def _wake(sync: int, system: int) -> None:
    add(sync + 8 * _EPOCH, 1)
    if load(sync + 8 * _SLEEPING):
        call_system(system, (_FUTEX, sync, _WAKE_PRIVATE, 1 << 20, 0, 0))


@jit(inline=True)
def _compute(sync: int, programs: int, count: int, number: int, clock: int) -> int:
    """Makes a program's calls; 1 if all went well."""
    stamp = sync + 8 * (_WAITING + count + _STAMPS * number)
    call_clock(clock, (_MONOTONIC, stamp))
    place = _field(programs, number, _CALLS)
    for _ in range(_field(programs, number, _COUNT)):
        status = call_share(load(place), (load(place + 8), 0, 1))
        if status not in (0, -2):
            store(sync + 8 * _STATUS, _FAILED)
            return 0
        place += 8 * ROW
    call_clock(clock, (_MONOTONIC, stamp + 16))
    return 1


@jit
def walk_lanes(
    programs: int,
    count: int,
    followers: int,
    sync: int,
    system: int,
    clock: int,
    tid: int,
    nt: int,
) -> None:
    """What one of `nt` threads does: it walks the lanes whose numbers are its own modulo `nt`.

    Args:
        programs: Address of a row of words for each program, in an order in which they can run.
        count: How many they are.
        followers: Address of numbers of programs, for all rows.
        sync: Address of the shared words, where a cache line starts.
        system: Address of the C function ``syscall``.
        clock: Address of the C function ``clock_gettime``.
        tid: This thread.
        nt: All threads; one walks all programs in their order.
    """
    first = looks = 0
    epoch = load(sync + 8 * _EPOCH)
    while load(sync + 8 * _LEFT) > 0 and load(sync + 8 * _STATUS) == 0:
        while first < count and (
            _field(programs, first, _LANE) % nt != tid or _waiting(sync, first) < 0
        ):
            first += 1
        number = first
        while number < count and (
            _field(programs, number, _LANE) % nt != tid or _waiting(sync, number) != 0
        ):
            number += 1
        if number < count:
            looks = 0
            store(sync + 8 * (_WAITING + number), -1)
            if _compute(sync, programs, count, number, clock):
                for index in range(
                    _field(programs, number, _FIRST), _field(programs, number, _LAST)
                ):
                    add(sync + 8 * (_WAITING + load(followers + 8 * index)), -1)
                add(sync + 8 * _LEFT, -1)
            _wake(sync, system)
        elif looks < LOOKS:
            while load(sync + 8 * _EPOCH) == epoch and looks < LOOKS:
                pause()
                looks += 1
        else:
            add(sync + 8 * _SLEEPING, 1)
            if load(sync + 8 * _EPOCH) == epoch:
                call = (_FUTEX, sync, _WAIT_PRIVATE, epoch & 0xFFFFFFFF, 0, 0)
                call_system(system, call)
            add(sync + 8 * _SLEEPING, -1)
            looks = 0
        # Read before the next look at what is ready: what ends after that changes it.
        epoch = load(sync + 8 * _EPOCH)


class Lanes:
    """Programs bound to memory, in lanes.

    Args:
        tables: For each program its rows of kernel calls; in an order in which they can run.
        waits: For each program the numbers of those that must have ended before it begins.
        lanes: For each program the number of its lane, from 0.
        keep: Whatever must live as long, since rows hold addresses of it.
    """

    def __init__(
        self,
        tables: Sequence[Array],
        waits: Sequence[Collection[int]],
        lanes: Sequence[int],
        keep: object,
    ) -> None:
        count = len(tables)
        self._keep: tuple[object, ...] = (list(tables), keep)
        size = 1 + max(lanes)
        self._crew = _crew_of(size)
        followers = [[n for n in range(count) if number in waits[n]] for number in range(count)]
        ends = np.cumsum([len(others) for others in followers])
        programs = np.zeros((count, _FIELDS), np.int64)
        programs[:, _CALLS] = [table.ctypes.data for table in tables]
        programs[:, _COUNT] = [len(table) for table in tables]
        programs[:, _LANE] = lanes
        programs[1:, _FIRST] = ends[:-1]
        programs[:, _LAST] = ends
        self._fresh = np.zeros(_WAITING + (1 + _STAMPS) * count, np.int64)
        self._fresh[_LEFT] = count
        self._fresh[_WAITING : _WAITING + count] = [len(set(others)) for others in waits]
        self._shared = _words(len(self._fresh))
        after = np.array([n for others in followers for n in others] or [0], np.int64)
        self._stamps = self._shared[-_STAMPS * count :].reshape(count, 2, 2)
        self._keep += (programs, after)
        addresses = (after.ctypes.data, self._shared.ctypes.data)
        functions = map(function_address, ("syscall", "clock_gettime"))
        args = (programs.ctypes.data, count, *addresses, *functions)
        found = entry_of(walk_lanes, args)
        if found is None:
            raise CompileError("Device CPU cannot compile what walks its programs.")
        self._slots = np.zeros(found.slots, np.int64)
        fill(self._slots, found, args)
        self._table = np.array([[found.trampoline, self._slots.ctypes.data, size]], np.int64)
        self._rows = Rows(self._table.ctypes.data, 0, 1, True)

    def run(self) -> None:
        """Runs all programs; on the calling thread alone if the other threads are busy.

        Raises:
            InferError: A kernel failed. No further program has begun then.
            InferCancelledError: :meth:`cancel` was called meanwhile; likewise.
        """
        np.copyto(self._shared, self._fresh)
        self._crew.run(self._rows)
        if self._shared[_STATUS] == _CANCELLED:
            raise InferCancelledError("The request was cancelled.")
        if self._shared[_STATUS]:
            raise InferError("A kernel failed on device CPU.")

    def cancel(self) -> None:
        """Lets no further program of the present run begin; called from another thread."""
        self._shared[_STATUS] = _CANCELLED

    def times(self) -> list[tuple[float, float]]:
        """When each program began and ended in the last run, by ``time.perf_counter``."""
        seconds = self._stamps @ np.array([1.0, 1e-9])
        return [(float(start), float(end)) for start, end in seconds]


def _words(count: int) -> Array:
    """Zeros that start where a cache line does."""
    room = np.zeros(count + 8, np.int64)
    start = -room.ctypes.data % 64 // 8
    return room[start : start + count]


@functools.cache
def _crew_of(size: int) -> Crew:
    """The process's threads for so many lanes; requests share them, so threads stay few."""
    return Crew(size)
