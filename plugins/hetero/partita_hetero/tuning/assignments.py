"""Placements as assignments of a problem's tasks to devices, and their value by the cost model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from partita.contract.query import Reason, ReasonCode
from partita_hetero.compile.replicas import ReplicaSet
from partita_hetero.cost.cost_table import CostTable
from partita_hetero.placement.by_priority import Placement, PreferredDevices
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.simulation.plan import Objective
from partita_hetero.planner.simulation.simulate import objective_value, simulate
from partita_hetero.tuning.replication import interval_us

_PLANNED = Reason(ReasonCode.MERGED, "planned")


class Assignments:
    """Turns placements into assignments, and back.

    Args:
        table: The costs, whose groups of operations are the tasks.
        objective: What is minimized.
    """

    def __init__(self, table: CostTable, objective: Objective) -> None:
        self._table = table
        self._objective = objective

    def of(self, placement: Placement) -> list[int]:
        """Device index of each task."""
        number = self._numbers
        return [number[placement.device[one.ops[-1]] or ""] for one in self._table.groups]

    def preferred(self, assignment: Sequence[int], why: Sequence[Reason] = ()) -> PreferredDevices:
        """The device of each operation, with a reason.

        Args:
            assignment: Device index of each task.
            why: A reason for each task (defaults to the plan).
        """
        return {
            op: (self._table.devices[number].name, why[index] if why else _PLANNED)
            for index, number in enumerate(assignment)
            for op in self._table.groups[index].ops
        }

    def value_us(self, problem: Problem, replica_set: ReplicaSet) -> float:
        """Microseconds that the cost model foresees: of a request, or between results.

        Args:
            problem: The costs.
            replica_set: One placement, or several that share the requests.
        """
        assignment, *others = (self.of(one) for one in replica_set.placements)
        if others:
            return interval_us(problem, [assignment, *others], replica_set.shares)
        timeline = simulate(problem, assignment, self._objective)
        return objective_value(problem, assignment, self._objective, timeline)

    def op_counts(self, replica_set: ReplicaSet) -> dict[str, int]:
        """Device to how many operations it runs; one that replicas share has them once."""
        placed = {
            (one.device[op] or "-", op) for one in replica_set.placements for op in self._table.home
        }
        counts = Counter(device for device, _ in placed)
        order = dict.fromkeys(
            one.device[op] or "-" for one in replica_set.placements for op in self._table.home
        )
        return {device: counts[device] for device in order}

    @property
    def _numbers(self) -> dict[str, int]:
        """Device to its index in problems."""
        return {device.name: index for index, device in enumerate(self._table.devices)}
