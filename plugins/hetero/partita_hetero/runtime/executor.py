"""Runs a plan: LINEAR and DATAFLOW on the calling thread, PARALLEL on several."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Mapping, Sequence

from partita.errors import InferCancelledError
from partita.system.thread_pool import LazyPool
from partita_hetero.compile.transfer_plan import Step

_pool = LazyPool("partita-hetero", 32)

RunStep = Callable[[int], None]
"""Runs the step of an index; must be safe to call at the same time for independent steps."""


class Schedule:
    """Which step waits for which, derived once per plan.

    Args:
        steps: In an order in which they can run.
        after: Further constraints: step index to steps that must have ended before it.
        lanes: Step index to the device that it occupies, for steps that occupy one.
        capacity: How many steps each device runs at the same time; 1 where nothing is said.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        after: Mapping[int, set[int]] | None = None,
        lanes: Mapping[int, str] | None = None,
        capacity: Mapping[str, int] | None = None,
    ) -> None:
        writer = {slot: index for index, step in enumerate(steps) for slot in step.writes}
        self.count = len(steps)
        waits: list[set[int]] = [
            {writer[slot] for slot in step.reads if slot in writer} for step in steps
        ]
        for index, others in (after or {}).items():
            waits[index] |= others
        self.waits = waits
        self.waiting = [len(others) for others in waits]
        self.lanes = [(lanes or {}).get(index, "") for index in range(len(steps))]
        self.capacity = {lane: (capacity or {}).get(lane, 1) for lane in self.lanes if lane}
        self.followers: list[list[int]] = [[] for _ in steps]
        for index, others in enumerate(waits):
            for other in others:
                self.followers[other].append(index)


def run_linear(schedule: Schedule, run: RunStep, cancelled: Callable[[], bool]) -> None:
    """One step after another, in the order of the plan."""
    for index in range(schedule.count):
        _check(cancelled)
        run(index)


def run_dataflow(schedule: Schedule, run: RunStep, cancelled: Callable[[], bool]) -> None:
    """Whichever step is ready, one at a time; what has just been written is read first."""
    waiting = list(schedule.waiting)
    ready = [index for index in range(schedule.count - 1, -1, -1) if waiting[index] == 0]
    while ready:
        _check(cancelled)
        index = ready.pop()
        run(index)
        for follower in reversed(schedule.followers[index]):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)


def run_parallel(schedule: Schedule, run: RunStep, cancelled: Callable[[], bool]) -> None:
    """All steps that are ready at the same time, as many on each device as it has room for.

    If a step fails, no further ones start; the error is raised once the running ones have ended.
    """
    _ParallelRun(schedule, run, cancelled).run_all()


class _ParallelRun:
    """One request: who ends a step goes on with what it made ready; only the rest changes threads.

    So steps that wait for one another stay on one thread, at first the calling one, and cost no
    more than in LINEAR.
    """

    def __init__(self, schedule: Schedule, run: RunStep, cancelled: Callable[[], bool]) -> None:
        self._schedule, self._run, self._cancelled = schedule, run, cancelled
        self._waiting = list(schedule.waiting)
        self._free = dict(schedule.capacity)
        self._queued: dict[str, list[int]] = {lane: [] for lane in self._free}
        self._lock = threading.Lock()
        self._running = 0
        self._failure: BaseException | None = None
        self._ended = threading.Event()

    def run_all(self) -> None:
        """Runs all steps; raises the first error."""
        ready = [index for index, count in enumerate(self._waiting) if count == 0]
        start = self._admitted(ready)
        self._running = len(start)
        if not start:
            return
        self._hand_out(start[1:])
        self._run_from(start[0])
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def _hand_out(self, start: Sequence[int]) -> None:
        for index in start:
            _pool.submit(self._run_from, index)

    def _run_from(self, index: int) -> None:
        """Runs a step, and after it, as long as there are any, one of those that waited for it."""
        while True:
            failure: BaseException | None = None
            try:
                _check(self._cancelled)
                self._run(index)
            except BaseException as error:  # noqa: BLE001  # handed to the calling thread
                failure = error
            start = self._end(index, failure)
            if not start:
                return
            self._hand_out(start[1:])
            index = start[0]

    def _end(self, index: int, failure: BaseException | None) -> list[int]:
        """Notes the end of a step; returns the steps that are to run now."""
        with self._lock:
            self._failure = self._failure or failure
            start = [] if self._failure is not None else self._admitted(self._next(index))
            self._running += len(start) - 1
            if self._running == 0:
                self._ended.set()
            return start

    def _next(self, index: int) -> list[int]:
        """The steps that waited for nothing more than the end of this one."""
        ready = []
        for follower in self._schedule.followers[index]:
            self._waiting[follower] -= 1
            if self._waiting[follower] == 0:
                ready.append(follower)
        lane = self._schedule.lanes[index]
        if lane:
            self._free[lane] += 1
            if self._queued[lane]:
                ready.append(heapq.heappop(self._queued[lane]))
        return sorted(ready)

    def _admitted(self, ready: Sequence[int]) -> list[int]:
        """Those of the steps that can start now; the others wait for room on their device."""
        start = []
        for index in ready:
            lane = self._schedule.lanes[index]
            if lane and not self._free[lane]:
                heapq.heappush(self._queued[lane], index)
                continue
            if lane:
                self._free[lane] -= 1
            start.append(index)
        return start


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise InferCancelledError("The request was cancelled.")


EXECUTORS = {"LINEAR": run_linear, "DATAFLOW": run_dataflow, "PARALLEL": run_parallel}
