"""Thread pools of machines with many processors: fields of tickets, sets of processors."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.isa import detected
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.trampoline import fill
from partita_cpu.properties import MOST_THREADS as MOST_ALLOWED
from partita_cpu.system import linux
from partita_cpu.threads import thread_pool as pools
from partita_cpu.threads.thread_pool import MOST_THREADS, ROW, Rows, ThreadPool


def walked(test):
    """A test of programs that threads walk: of native kernels, on Linux."""
    skipped = pytest.mark.skipif(
        not detected().native or not sys.platform.startswith("linux"),
        reason="programs are walked by Python here",
    )
    return pytest.mark.usefixtures("native_kernels")(skipped(test))


@jit
def _count(cells, tid, nt):
    """Each share counts in a cell of its own how often it was computed."""
    cells[tid] += 1


class Counted:
    """Rows that count; `steps` of them, each with as many shares as the thread pool has threads."""

    def __init__(self, size, steps):
        self.cells = np.zeros((steps, size), np.int64)
        entry = entry_of(_count, (self.cells[0],))
        self._slots = np.zeros((steps, entry.slots), np.int64)
        table = []
        for slots, cells in zip(self._slots, self.cells, strict=True):
            fill(slots, entry, (cells,))
            table.append((entry.trampoline, slots.ctypes.data, size))
        self._table = np.zeros((steps, ROW), np.int64)
        self._table[:, :3] = table
        self.rows = Rows(self._table.ctypes.data, 0, steps, True)


@walked
@pytest.mark.parametrize(("size", "runs"), [(2, 200), (64, 20), (130, 10), (512, 3), (1100, 2)])
def test_every_share_is_computed_once_by_any_number_of_threads(size, runs):
    pool, counted = ThreadPool(size), Counted(size, 5)
    for _ in range(runs):
        pool.run(counted.rows)
    np.testing.assert_array_equal(counted.cells, runs)
    assert len(pool.threads) == size - 1
    pool.stop()


@walked
def test_helpers_end_with_their_pool():
    pool, counted = ThreadPool(5), Counted(5, 1)
    pool.run(counted.rows)
    threads = pool.threads
    assert not any(thread.join(0) for thread in threads)
    pool.stop()
    assert all(thread.join(60) for thread in threads)


@walked
@pytest.mark.parametrize("number", [0, 1 << 32, (1 << 50) + 7])
def test_shares_are_taken_once_after_any_number_of_tickets(number):
    pool, counted = ThreadPool(3), Counted(3, 7)
    pool.run(Rows(0, 0, 0, True))
    ticket = (pool.sync_word - pool.memory.ctypes.data + pools.TICKET) // 8
    pool.words[ticket] = number << pools.NUMBER
    for runs in range(1, 5):
        pool.run(counted.rows)
        np.testing.assert_array_equal(counted.cells, runs)
    pool.stop()


@walked
def test_shares_of_threads_that_do_not_come_are_taken_by_others():
    """More threads than any machine has processors: most sleep while others compute."""
    pool, counted = ThreadPool(300), Counted(300, 40)
    pool.run(counted.rows)
    np.testing.assert_array_equal(counted.cells, 1)
    pool.stop()


def test_no_more_threads_than_fit():
    assert MOST_ALLOWED <= MOST_THREADS
    assert MOST_THREADS <= pools.MOST_SHARES
    with pytest.raises(
        ValueError, match="A thread pool of 4096 threads is too large; at most 4095"
    ):
        ThreadPool(MOST_THREADS + 1)


@walked
@pytest.mark.parametrize("size", [128, 1024, 8192])
def test_sets_of_more_than_1024_processors(monkeypatch, size):
    monkeypatch.setattr(pools, "set_bytes", lambda: size)
    pool = ThreadPool(3)
    counted = Counted(3, 2)
    for _ in range(3):
        pool.run(counted.rows)
    np.testing.assert_array_equal(counted.cells, 3)
    allowed = [linux.os.sched_getaffinity(thread.native_id) for thread in pool.threads]
    there = linux.os.sched_getaffinity(0)
    assert all(found <= there and len(found) == max(1, len(there) - 1) for found in allowed)
    pool.stop()


def test_a_set_is_as_large_as_the_system_asks_for(monkeypatch):
    asked = []

    class Syscall:
        restype = None

        def __call__(self, number, thread, size, room):
            asked.append((number.value, size.value, len(room)))
            return -1 if size.value < 512 else 256

    monkeypatch.setattr(linux.ctypes, "CDLL", lambda name: type("C", (), {"syscall": Syscall()}))
    linux.set_bytes.cache_clear()
    try:
        assert linux.set_bytes() == 512
    finally:
        linux.set_bytes.cache_clear()
    number = linux.calls.get_affinity
    assert asked == [(number, 128, 128), (number, 256, 256), (number, 512, 512)]
