"""PARALLEL: all steps that are ready at the same time, as many as each device has room for."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.task_threads import TaskThreads
from partita.system.threads.turn import Turn
from partita_hetero.executors.executor import Cancelled, Executor, RunStep, check_cancelled
from partita_hetero.executors.schedule import Schedule

step_threads = TaskThreads("partita-hetero", 32)

_LOOK_S = 1e-3


class Parallel(Executor):
    """Steps side by side on several threads.

    If a step fails, or Ctrl-C comes, no further ones start; the error is raised once the running
    ones have ended, since they work in the request's memory.
    """

    name = "PARALLEL"
    summary = (
        "all that are ready at the same time, one on each device (as many as the device names as "
        "its OPTIMAL_NUMBER_OF_INFER_REQUESTS)"
    )
    one_at_a_time = False
    objective = "PARALLEL"

    def run(self, schedule: Schedule, run: RunStep, cancelled: Cancelled) -> None:
        """Runs steps as they become ready, on threads of a pool and the calling one."""
        _ParallelRun(schedule, run, cancelled).run_all()


class _Handed:
    """A step that another thread begins with, unless that is taken back before.

    Attributes:
        is_over: Whether the other thread has nothing to do with it any more.
    """

    def __init__(self, run_from: Callable[[int], None], index: int) -> None:
        self._run_from, self._index = run_from, index
        self._turn = Turn()
        self.is_over = False

    def run(self) -> None:
        """Runs it and what follows it, on this thread."""
        try:
            if self._turn.take(self._run_from):
                self._run_from(self._index)
        finally:
            self.is_over = True

    def take_back(self) -> bool:
        """Whether no other thread will begin with it; asked again, it says the same."""
        return self._turn.take(self)


class _ParallelRun:
    """One request: who ends a step goes on with what it made ready; only the rest changes threads.

    So steps that wait for one another stay on one thread, at first the calling one, and cost no
    more than in LINEAR.
    """

    def __init__(self, schedule: Schedule, run: RunStep, cancelled: Cancelled) -> None:
        self._schedule, self._run, self._cancelled = schedule, run, cancelled
        self._waiting = list(schedule.waiting)
        self._free = dict(schedule.capacity)
        self._queued: dict[str, list[int]] = {device: [] for device in self._free}
        self._lock = InterruptSafeLock()
        self._running = 0
        self._failure: BaseException | None = None
        self._handed: list[_Handed] = []
        self._ended = threading.Lock()  # Ctrl-C in an Event may keep it locked within
        self._ended.acquire()

    def run_all(self) -> None:
        """Runs all steps; raises the first error."""
        ready = [index for index, count in enumerate(self._waiting) if count == 0]
        start = self._admitted(ready)
        self._running = len(start)
        if not start:
            return
        try:
            self._run_from(start[0], *self._hand_out(start[1:]))
            self._ended.acquire()
        except BaseException as error:  # Ctrl-C, outside of a step
            self._failure = self._failure or error
            self._wait_for_others()
            raise
        if self._failure is not None:
            raise self._failure

    def _wait_for_others(self) -> None:
        """Waits until no other thread works for this request, once no further step starts."""
        seen = -1
        while seen < len(self._handed):  # who is not over yet may hand out more
            seen = len(self._handed)
            for handed in self._handed[:seen]:
                while not handed.is_over and not handed.take_back():
                    time.sleep(_LOOK_S)

    def _hand_out(self, start: Sequence[int]) -> Sequence[int]:
        """Lets other threads begin with steps; returns those for which no thread can be started."""
        for place, index in enumerate(start):
            handed = _Handed(self._run_from, index)
            self._handed.append(handed)
            try:
                step_threads.submit(handed.run)
            except RuntimeError:
                handed.take_back()
                return start[place:]
        return []

    def _run_from(self, *steps: int) -> None:
        """Runs steps, and after each, as long as there are any, one of those that waited for it."""
        own = list(steps)
        while own:
            index = own.pop(0)
            failure: BaseException | None = None
            try:
                check_cancelled(self._cancelled)
                if self._failure is None:
                    self._run(index)
            except BaseException as error:  # noqa: BLE001  # handed to the calling thread
                failure = error
            start = self._end(index, failure)
            own[:0] = [*start[:1], *self._hand_out(start[1:])]

    def _end(self, index: int, failure: BaseException | None) -> list[int]:
        """Notes the end of a step; returns the steps that are to run now."""
        with self._lock:
            self._failure = self._failure or failure
            start = [] if self._failure is not None else self._admitted(self._next(index))
            self._running += len(start) - 1
            if self._running == 0:
                self._ended.release()
            return start

    def _next(self, index: int) -> list[int]:
        """The steps that waited for nothing more than the end of this one."""
        ready = []
        for follower in self._schedule.followers[index]:
            self._waiting[follower] -= 1
            if self._waiting[follower] == 0:
                ready.append(follower)
        device = self._schedule.devices[index]
        if device:
            self._free[device] += 1
            if self._queued[device]:
                ready.append(heapq.heappop(self._queued[device]))
        return sorted(ready)

    def _admitted(self, ready: Sequence[int]) -> list[int]:
        """Those of the steps that can start now; the others wait for room on their device."""
        start = []
        for index in ready:
            device = self._schedule.devices[index]
            if device and not self._free[device]:
                heapq.heappush(self._queued[device], index)
                continue
            if device:
                self._free[device] -= 1
            start.append(index)
        return start


EXECUTOR = Parallel()
