"""Runs a plan: LINEAR and DATAFLOW on the calling thread, PARALLEL on several."""

from __future__ import annotations

import heapq
import queue
from collections.abc import Callable, Mapping, Sequence

from partita.errors import InferCancelledError
from partita.threads import LazyPool
from partita_hetero.transfer import Step

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

    A step that is ready alone runs on the calling thread, which otherwise only waits. If a step
    fails, no further ones start; the error is raised once the running ones have ended.
    """
    waiting = list(schedule.waiting)
    lanes = schedule.lanes
    free = dict(schedule.capacity)
    queued: dict[str, list[int]] = {lane: [] for lane in free}
    done: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
    running = 0
    failure: BaseException | None = None

    def task(index: int) -> None:
        try:
            run(index)
        except BaseException as error:  # noqa: BLE001  # handed to the waiting thread, which raises it
            done.put((index, error))
        else:
            done.put((index, None))

    def admitted(ready: list[int]) -> list[int]:
        """Those of the steps that can start now; the others wait for room on their device."""
        start = []
        for index in ready:
            lane = lanes[index]
            if lane and not free[lane]:
                heapq.heappush(queued[lane], index)
                continue
            if lane:
                free[lane] -= 1
            start.append(index)
        return start

    start = admitted([index for index in range(schedule.count) if waiting[index] == 0])
    while start or running:
        if failure is None and cancelled():
            failure = InferCancelledError("The request was cancelled.")
        if failure is not None:
            start = []
        if len(start) == 1 and not running:
            task(start[0])
        else:
            for index in start:
                _pool.submit(task, index)
        running += len(start)
        if not running:
            break
        index, error = done.get()
        running -= 1
        failure = failure or error
        ready = []
        for follower in schedule.followers[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
        lane = lanes[index]
        if lane:
            free[lane] += 1
            if queued[lane]:
                ready.append(heapq.heappop(queued[lane]))
        start = admitted(sorted(ready))
    if failure is not None:
        raise failure


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise InferCancelledError("The request was cancelled.")


EXECUTORS = {"LINEAR": run_linear, "DATAFLOW": run_dataflow, "PARALLEL": run_parallel}
