"""Threads that walk a table of kernel calls together: one call from Python runs many steps.

Every thread goes through the same rows and computes its share of each; a barrier follows each row.
Between calls the threads wait: first looking, so that the next call starts at once, then asleep.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading

import numpy as np

from partita.errors import InferError
from partita.lowering import Array
from partita_cpu.kernels.numba_jit import jit
from partita_cpu.native.atomics import add, call_share, call_system, load, pause, store
from partita_cpu.native.isa import Isa, isa

# Words of the shared memory; each on a cache line of its own.
_GENERATION, _ARRIVED, _PASSED, _SLEEPING = 0, 64, 128, 192
_TABLE, _FIRST, _LAST, _THREADS, _STATUS, _SYSCALL, _QUIT = 256, 264, 272, 280, 320, 328, 336
WORDS = 64
"""Size of the shared memory."""

ROW = 3
"""Words of a table's row: trampoline, slots, whether it is shared among the threads."""

LOOKS = 3000
"""How often a waiting thread looks before it sleeps: some tens of microseconds."""

_FUTEX, _YIELD = 202, 24
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


@jit(inline=True)
def _meet(sync: int, threads: int) -> None:
    """Waits until all threads are here."""
    passed = load(sync + _PASSED)
    if add(sync + _ARRIVED, 1) == threads - 1:
        store(sync + _ARRIVED, 0)
        store(sync + _PASSED, passed + 1)
        return
    looks = 0
    while load(sync + _PASSED) == passed:
        pause()
        looks += 1
        if looks == LOOKS:
            # Another process has this processor's other thread: let it go on.
            call_system(load(sync + _SYSCALL), (_YIELD, 0, 0, 0, 0, 0))
            looks = LOOKS // 2


@jit
def _walk(sync: int, table: int, first: int, last: int, tid: int, threads: int) -> None:
    """Computes a thread's shares of some rows."""
    for row in range(first, last):
        place = table + 8 * ROW * row
        shared = load(place + 16)
        status = 0
        if shared:
            status = call_share(load(place), (load(place + 8), tid, threads))
        elif tid == 0:
            status = call_share(load(place), (load(place + 8), 0, 1))
        if status not in (0, -2):
            store(sync + _STATUS, row + 1)
        if threads > 1:
            alone = not shared and row + 1 < last and load(place + 8 * ROW + 16) == 0
            if not alone:
                _meet(sync, threads)


@jit
def _serve(sync: int, tid: int) -> None:
    """What a thread of the crew does all its life."""
    seen = 0
    looks = 0
    while True:
        if load(sync + _GENERATION) == seen:
            pause()
            looks += 1
            if looks >= LOOKS:
                add(sync + _SLEEPING, 1)
                number = load(sync + _SYSCALL)
                call_system(number, (_FUTEX, sync, _WAIT_PRIVATE, seen & 0xFFFFFFFF, 0, 0))
                add(sync + _SLEEPING, -1)
                looks = 0
            continue
        looks = 0
        seen += 1
        if load(sync + _QUIT):
            return
        first, last = load(sync + _FIRST), load(sync + _LAST)
        _walk(sync, load(sync + _TABLE), first, last, tid, load(sync + _THREADS))


@jit
def _lead(sync: int, table: int, first: int, last: int, threads: int) -> int:
    """Runs rows with the crew (or alone); returns the row that failed, counted from 1, or 0."""
    store(sync + _STATUS, 0)
    if threads > 1:
        store(sync + _TABLE, table)
        store(sync + _FIRST, first)
        store(sync + _LAST, last)
        store(sync + _THREADS, threads)
        add(sync + _GENERATION, 1)
        if load(sync + _SLEEPING):
            number = load(sync + _SYSCALL)
            call_system(number, (_FUTEX, sync, _WAKE_PRIVATE, threads - 1, 0, 0))
    _walk(sync, table, first, last, 0, threads)
    failed: int = load(sync + _STATUS)
    return failed


class Crew:
    """The calling thread and some more.

    Args:
        size: Number of threads, the caller's included.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._busy = threading.Lock()
        self._pid = 0
        self._memory = np.zeros(WORDS + 8, np.int64)
        self._threads: list[threading.Thread] = []
        libc = ctypes.CDLL(None)
        self._syscall = ctypes.cast(libc.syscall, ctypes.c_void_p).value or 0
        self._sync = 0
        atexit.register(self._stop)

    def run(self, table: Array, first: int, last: int, shared: bool, block: Array) -> None:
        """Runs rows of a table; on the calling thread alone if the crew is busy.

        Args:
            table: `ROW` words a row.
            first: First row.
            last: Behind the last row.
            shared: Whether it is worth it to wake the other threads.
            block: `WORDS` words of the caller's, for a run on its thread alone.

        Raises:
            InferError: A kernel failed.
        """
        if shared and self.size > 1 and self._busy.acquire(blocking=False):
            try:
                self._ready()
                failed = _lead(self._sync, table.ctypes.data, first, last, self.size)
            finally:
                self._busy.release()
        else:
            failed = _lead(block.ctypes.data, table.ctypes.data, first, last, 1)
        if failed:
            raise InferError(f"A kernel of step {failed - 1} failed on device CPU.")

    def _block(self) -> int:
        """Fresh shared memory, at the start of a cache line."""
        self._memory = np.zeros(WORDS + 8, np.int64)
        start = self._memory.ctypes.data
        start += -start % 64
        self._memory[(start - self._memory.ctypes.data + _SYSCALL) // 8] = self._syscall
        return start

    def _ready(self) -> None:
        """Starts the threads; anew after a fork, since a child has no threads but its own."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._sync = self._block()
        self._threads = [
            threading.Thread(target=_serve, args=(self._sync, tid), name="partita", daemon=True)
            for tid in range(1, self.size)
        ]
        for thread in self._threads:
            thread.start()

    def _stop(self) -> None:
        """Ends the threads while the code they run is still there."""
        if self._pid != os.getpid() or not self._busy.acquire(timeout=1):
            return
        self._memory[(self._sync - self._memory.ctypes.data + _QUIT) // 8] = 1
        _lead(self._sync, 0, 0, 0, self.size)
        for thread in self._threads:
            thread.join(1)


def new_crew(size: int) -> Crew | None:
    """A crew; ``None`` where programs are walked by Python.

    That is the case where PARTITA_CPU_ISA says ``portable``, and on systems without futexes.
    """
    if isa() is Isa.PORTABLE or not sys.platform.startswith("linux"):
        return None
    return Crew(size)
