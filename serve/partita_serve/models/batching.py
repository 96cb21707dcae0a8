"""Dynamic batching: requests wait in order of priority, and like ones run together."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Executor
from heapq import heappop, heappush
from typing import Protocol

from partita_serve.models.admission import QueueLimit
from partita_serve.models.instance import Finished, Instance, Job, Outputs
from partita_serve.protocol.errors import DeadlineExceeded, ServingError


class RunEnded(Protocol):
    """Called for each run, on the event loop."""

    def __call__(self, jobs: Sequence[Job], finished: Finished) -> None:
        """Takes the jobs of a run and what came of it."""


class _Group:
    """Jobs that wait and can be joined."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Job]] = []
        self.rows = 0  # of those that still wait
        self.since_ns = 0  # when the first of them came

    def first(self) -> tuple[int, int] | None:
        """What orders its best job among those of other groups; ``None`` if none waits."""
        while self.heap and not self.heap[0][2].waits:
            heappop(self.heap)
        return self.heap[0][:2] if self.heap else None


class Batcher:
    """Runs jobs on instances of a model; all of it but the runs happens on the event loop.

    Args:
        instances: Each makes one run at a time.
        threads: Where runs are made.
        limit: Counts what waits.
        max_rows: Rows that are joined at most; 0 joins nothing.
        delay_ns: How long a job waits for others while an instance is free.
        ended: Called for each run.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        threads: Executor,
        limit: QueueLimit,
        max_rows: int,
        delay_ns: int,
        ended: RunEnded,
    ) -> None:
        self._instances = instances
        self._idle = list(instances)
        self._threads = threads
        self._limit = limit
        self._max_rows = max_rows
        self._delay_ns = delay_ns
        self._on_ended = ended
        self._loop = asyncio.get_running_loop()
        self._groups: dict[Hashable, _Group] = {}
        self._numbers = itertools.count()
        self._wake: asyncio.TimerHandle | None = None

    async def run(self, job: Job) -> Outputs:
        """The outputs of a job, when its turn has come.

        Raises:
            Overloaded: Too many wait.
            DeadlineExceeded: Its turn did not come in time.
            ServingError: The device failed.
        """
        self._limit.check()
        self._enter(job)
        self._start()
        try:
            return await job.future
        finally:
            self._leave(job)

    def forget(self) -> None:
        """Has the next run of each instance begin with the model's initial state."""
        for instance in self._instances:
            instance.forget()

    def _enter(self, job: Job) -> None:
        group = self._groups.setdefault(job.alike, _Group())
        if not group.rows:
            group.since_ns = job.arrived_ns
        heappush(group.heap, (job.priority, next(self._numbers), job))
        group.rows += job.rows
        job.waits = True
        self._limit.waiting += 1
        if job.limit.ns:
            passed = time.perf_counter_ns() - job.arrived_ns
            job.timer = self._loop.call_later((job.limit.ns - passed) / 1e9, self._expire, job)

    def _leave(self, job: Job) -> None:
        """Takes a job that waits out of the queue: it runs, is late, or its client has gone."""
        if not job.waits:
            return
        job.waits = False
        self._limit.waiting -= 1
        self._groups[job.alike].rows -= job.rows
        if job.timer is not None:
            job.timer.cancel()

    def _expire(self, job: Job) -> None:
        self._leave(job)
        if not job.future.done():
            job.future.set_exception(
                DeadlineExceeded(
                    f"The turn of the request for model '{job.request.model}' did not come within "
                    f"{job.limit.ns / 1e6:g} ms, {job.limit.source}; it was not computed."
                )
            )

    def _start(self) -> None:
        """Starts runs as long as there are instances and jobs that are due."""
        while self._idle:
            jobs = self._next_jobs()
            if not jobs:
                return
            self._threads.submit(self._work, self._idle.pop(), jobs)

    def _next_jobs(self) -> list[Job]:
        """The jobs of the next run; none if none waits, or all may wait for others."""
        now, due_ns = time.perf_counter_ns(), None
        best: tuple[int, int] | None = None
        chosen: _Group | None = None
        for key, group in list(self._groups.items()):
            first = group.first()
            if first is None:
                del self._groups[key]
                continue
            full = group.rows >= self._max_rows
            if not full and now - group.since_ns < self._delay_ns:
                due = group.since_ns + self._delay_ns
                due_ns = due if due_ns is None else min(due_ns, due)
            elif best is None or first < best:
                best, chosen = first, group
        if chosen is not None:
            return self._taken(chosen)
        if due_ns is not None:
            self._wake_in((due_ns - now) / 1e9)
        return []

    def _taken(self, group: _Group) -> list[Job]:
        jobs: list[Job] = []
        rows = 0
        while group.first() is not None:
            job = group.heap[0][2]
            if jobs and rows + job.rows > self._max_rows:
                break
            heappop(group.heap)
            self._leave(job)
            jobs.append(job)
            rows += job.rows
        left = [entry[2] for entry in group.heap]
        group.since_ns = min((job.arrived_ns for job in left if job.waits), default=0)
        return jobs

    def _wake_in(self, seconds: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._loop.call_later(seconds, self._start)

    def _work(self, instance: Instance, jobs: Sequence[Job]) -> None:
        """One run, on a thread."""
        finished = instance.run(jobs)
        self._loop.call_soon_threadsafe(self._end, instance, jobs, finished)

    def _end(self, instance: Instance, jobs: Sequence[Job], finished: Finished) -> None:
        self._idle.append(instance)
        self._start()  # the device goes on while answers are written
        for job, outcome in zip(jobs, finished.outcomes, strict=True):
            if job.future.done():
                continue  # its client has gone
            if isinstance(outcome, ServingError):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)
        # Behind the tasks that were just woken, so that no answer waits for counters.
        self._loop.call_soon(self._on_ended, jobs, finished)
