"""LINEAR: the steps in the order of the plan, on the calling thread."""

from __future__ import annotations

from partita_hetero.executors.executor import Cancelled, Executor, RunStep, check_cancelled
from partita_hetero.executors.schedule import Schedule


class Linear(Executor):
    """One step after another."""

    name = "LINEAR"
    summary = "submodels in one order"
    keeps_order = True

    def run(self, schedule: Schedule, run: RunStep, cancelled: Cancelled) -> None:
        """Runs the steps in the order of the plan."""
        for index in range(schedule.count):
            check_cancelled(cancelled)
            run(index)


EXECUTOR = Linear()
