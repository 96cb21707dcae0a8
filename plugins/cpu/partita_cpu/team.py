"""A small team of threads that computes shares of one step."""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from partita_cpu.native.crew import Crew, new_crew

PARALLEL_WORK = 1 << 20
"""Steps below this work (bytes or operations) run on one thread: waking another costs more."""


class Team:
    """Runs ``fn(*args, tid, nt)`` for every ``tid`` on ``nt`` threads, the caller's included.

    The other threads start with the first call and wait between calls. A call while the team is
    busy (another request computes) runs all shares on its own thread.

    Args:
        size: Number of threads, the caller's included.
        crew: The same for whole programs of compiled kernels, or ``None`` for step by step.
    """

    def __init__(self, size: int, crew: Crew | None = None) -> None:
        self.size = max(1, size)
        self.crew = crew
        self._busy = threading.Lock()
        self._workers: list[_Worker] = []
        self._pid = 0

    def run(self, fn: Callable[..., Any], *args: Any) -> None:
        """Computes all shares; returns when all are done."""
        if not self._busy.acquire(blocking=False):
            fn(*args, 0, 1)
            return
        try:
            workers = self._ready()
            for tid, worker in enumerate(workers, 1):
                worker.start(fn, (*args, tid, self.size))
            try:
                fn(*args, 0, self.size)
            finally:
                for worker in workers:
                    worker.wait()
        finally:
            self._busy.release()
        for worker in workers:
            worker.check()

    def _ready(self) -> list[_Worker]:
        """The workers; new ones after a fork, since a child process has no threads but its own."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._workers = [_Worker() for _ in range(self.size - 1)]
        return self._workers


@functools.cache
def team_of(size: int, stream: int) -> Team:
    """The process's team for a stream; compiled models share it, so threads stay few."""
    return Team(size, new_crew(size))


class _Worker:
    """One thread that waits for a share, computes it and says so.

    Two bare locks hand over, each released by the other side: half the latency of a semaphore.
    """

    def __init__(self) -> None:
        self._go = threading.Lock()
        self._done = threading.Lock()
        self._go.acquire()
        self._done.acquire()
        self._fn: Callable[..., Any] | None = None
        self._args: tuple[Any, ...] = ()
        self._error: BaseException | None = None
        threading.Thread(target=self._loop, name="partita-cpu", daemon=True).start()
        atexit.register(self._stop)

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fn, self._args = fn, args
        self._go.release()

    def wait(self) -> None:
        self._done.acquire()
        # The arrays of the last call are the caller's; do not keep them alive.
        self._args = ()

    def check(self) -> None:
        """Raises what the share raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _stop(self) -> None:
        if self._go.locked():
            self._fn = None
            self._go.release()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            if self._fn is None:
                return
            try:
                self._fn(*self._args)
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                self._error = error
            self._done.release()
