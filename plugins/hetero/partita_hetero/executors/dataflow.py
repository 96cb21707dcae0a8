"""DATAFLOW: whichever step is ready, on the calling thread."""

from __future__ import annotations

from partita_hetero.executors.executor import Cancelled, Executor, RunStep, check_cancelled
from partita_hetero.executors.schedule import Schedule


class Dataflow(Executor):
    """One step at a time; what has just been written is read first."""

    name = "DATAFLOW"
    summary = "whichever is ready, one at a time"

    def run(self, schedule: Schedule, run: RunStep, cancelled: Cancelled) -> None:
        """Runs steps as they become ready."""
        waiting = list(schedule.waiting)
        ready = [index for index in range(schedule.count - 1, -1, -1) if waiting[index] == 0]
        while ready:
            check_cancelled(cancelled)
            index = ready.pop()
            run(index)
            for follower in reversed(schedule.followers[index]):
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    ready.append(follower)


EXECUTOR = Dataflow()
