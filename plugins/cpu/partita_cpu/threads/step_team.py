"""A small team of threads that share a single step."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from partita.errors import PLUGIN_FAILURES, PropertyError
from partita.system.living import Living
from partita.system.processors import allowed_processors
from partita.system.threads.made_once import made_while_held
from partita.system.threads.system_thread import SystemThread
from partita.system.threads.turn import NOW, Turn
from partita_cpu.jit.dispatch import available
from partita_cpu.system import this_system
from partita_cpu.threads.thread_pool import ThreadPool, pin_thread

_log = logging.getLogger(__name__)

PARALLEL_WORK = 1 << 20
"""Steps below this work (bytes or operations) run on one thread: waking another costs more."""

_LOOK_S = 1e-3


class Team:
    """Runs ``fn(*args, tid, nt)`` for every ``tid`` on ``nt`` threads, the caller's included.

    The other threads start with the first call, wait between calls, and end when nobody has the
    team any more. A call while the team is busy (another request computes) runs all shares on its
    own thread.

    Args:
        size: Number of threads, the caller's included.
        pool: The same for whole programs of compiled kernels, or ``None`` for step by step.
        processors: One for each thread but the caller's to stay on; none to let them move.
    """

    def __init__(
        self, size: int, pool: ThreadPool | None = None, processors: Sequence[int] = ()
    ) -> None:
        self.size = max(1, size)
        self._processors = processors
        self.pool = pool
        self._turn = Turn()
        self._workers: list[_Worker] = []
        self._pid = 0
        _all.add(self)

    def begin_anew(self) -> None:
        """Forgets who computes, as a child process has to: that thread is not here."""
        self._turn = Turn()

    def run(self, fn: Callable[..., Any], *args: Any) -> None:
        """Computes all shares; returns when all are done.

        Ctrl-C, which may come between any two of these calls, leaves the team free, and no share
        undone that works in memory of the caller.
        """
        users, user = self._turn.users, object()
        workers: list[_Worker] = []
        try:
            if self._turn.take(user):
                workers = self._ready()
                shares = 1 + len(workers)
                for tid, worker in enumerate(workers, 1):
                    worker.start(fn, (*args, tid, shares))
                try:
                    fn(*args, 0, shares)
                finally:
                    for worker in workers:
                        worker.wait()
            else:
                fn(*args, 0, 1)
        except PLUGIN_FAILURES:
            raise
        except BaseException:
            for worker in workers:
                worker.end()
            if self._turn.is_of(user):
                self._pid = 0  # new ones come: nobody knows what these have told
            raise
        finally:
            if NOW in users and users[NOW] is user:
                del users[NOW]
        for worker in workers:
            worker.check()

    def _ready(self) -> list[_Worker]:
        """The workers, or those that the system lets start; new ones after a fork.

        A child process has no threads but its own.
        """
        if self._pid != os.getpid():
            self._pid, self._workers = os.getpid(), []
        homes: Sequence[int | None] = self._processors or [None] * (self.size - 1)
        try:
            while len(self._workers) < len(homes):
                self._workers.append(_Worker(self, homes[len(self._workers)]))
        except RuntimeError as error:
            count = 1 + len(self._workers)
            _log.info("Device CPU runs on %d of %d threads for now: %s", count, self.size, error)
        return self._workers


_all = Living(in_child=Team.begin_anew)


def team_of(size: int, stream: int, pinned: bool = False) -> Team:
    """The process's team for a stream; compiled models share it, so threads stay few.

    It is there as long as somebody has it: who computes again and again keeps it.

    Where Python walks programs (PARTITA_CPU_ISA says ``portable``) teams have no thread pool.

    Args:
        size: Threads, the calling one among them.
        stream: Number of the stream, from 0.
        pinned: Whether each thread stays on one processor.

    Raises:
        PropertyError: Threads shall be pinned, and the system has no way to do it.
    """
    return _team_of(size, stream, pinned, available())


@made_while_held
def _team_of(size: int, stream: int, pinned: bool, walks: bool) -> Team:
    processors: list[int] = []
    if pinned:
        if not this_system().pins_threads:
            raise PropertyError(
                f"ENABLE_CPU_PINNING is set, and {sys.platform} cannot pin threads; set it to NO."
            )
        there = allowed_processors()
        processors = [there[(stream * size + tid) % len(there)] for tid in range(1, size)]
    return Team(size, ThreadPool(size, processors) if walks else None, processors)


class _Worker:
    """One thread that waits for a share, computes it and says so; it ends with its team.

    Two bare locks hand over, each released by the other side: half the latency of a semaphore. The
    reference to the team releases the first one, too, without any step of Python, in which Ctrl-C
    would be lost: where there is no share, the thread ends.
    """

    def __init__(self, team: Team, processor: int | None) -> None:
        self._processor = processor
        self._go = threading.Lock()
        self._done = threading.Lock()
        self._go.acquire()
        self._done.acquire()
        self._fn: Callable[..., Any] | None = None
        self._args: tuple[Any, ...] = ()
        self._error: BaseException | None = None
        self._is_done = True
        release: Callable[..., None] = self._go.__exit__  # whatever it is called with
        self._team: weakref.ref[Team] | None = weakref.ref(team, release)
        SystemThread(self._loop)
        _all_workers.add(self)

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fn, self._args, self._is_done = fn, args, False
        self._go.release()

    def wait(self) -> None:
        self._done.acquire()
        # The arrays of the last call are the caller's; do not keep them alive.
        self._fn, self._args = None, ()

    def check(self) -> None:
        """Raises what the share raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """Waits for the end of the share, if any, and ends the thread."""
        while not self._is_done:
            time.sleep(_LOOK_S)
        self.stop()

    def stop(self) -> None:
        """Ends the thread, which has no share."""
        if self._go.locked():
            self._fn = None
            self._go.release()
        self._team = None  # it would release the lock once more

    def _loop(self) -> None:
        pin_thread(self._processor)
        while True:
            self._go.acquire()
            if self._fn is None:
                return
            try:
                self._fn(*self._args)
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                self._error = error
            self._is_done = True
            self._done.release()


_all_workers: Living[_Worker] = Living()


@atexit.register
def _stop_all() -> None:
    """Ends the threads of all teams."""
    for worker in _all_workers:
        worker.stop()
