"""The winning placement: a reason for each operation, and its cost on other devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partita.contract.explanation import Decision
from partita_hetero.compile.replicas import replicated
from partita_hetero.cost.cost_table import CostTable
from partita_hetero.placement.decision import ChosenPlacement, DeviceAlternative, Replica
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.report.reasons import TaskReason, reasons
from partita_hetero.planner.simulation.plan import Objective, Plan
from partita_hetero.planner.simulation.simulate import objective_value, simulate
from partita_hetero.tuning.assignments import Assignments
from partita_hetero.tuning.contestant import Entry
from partita_hetero.tuning.replication import FREE

EXPLAINING_SECONDS = 1.0
"""For finding out what each operation would cost elsewhere."""

RUNS_DECIDED = "by its costs alone; runs decided otherwise"
"""Said of another device that would be faster by the costs, in a placement that won its race."""


def explained_choice(
    chosen: Entry,
    decision: Decision,
    problem: Problem,
    table: CostTable,
    assignments: Assignments,
    objective: Objective,
) -> ChosenPlacement:
    """The kept placement, with a reason for each operation and the run that is foreseen.

    Args:
        chosen: What won.
        decision: What raced.
        problem: The costs, as the winner's runs corrected them.
        table: Their table.
        assignments: Turns placements into assignments.
        objective: What was minimized.
    """
    assignment = assignments.of(chosen.placement)
    timeline = simulate(problem, assignment, objective)
    value = objective_value(problem, assignment, objective, timeline)
    order = tuple(range(len(assignment)))
    plan = Plan(tuple(assignment), objective, value, 0.0, chosen.name, order, timeline)
    why = reasons(problem, plan, EXPLAINING_SECONDS, RUNS_DECIDED)
    preferred = assignments.preferred(assignment, [one.reason for one in why])
    elsewhere = _elsewhere(table, problem, why)
    first = ChosenPlacement(preferred, decision, timeline, elsewhere)
    if not chosen.is_replicated:
        return first
    return _replicated_choice(chosen, first, table, assignments)


def _replicated_choice(
    chosen: Entry, first: ChosenPlacement, table: CostTable, assignments: Assignments
) -> ChosenPlacement:
    """The choice of the first replica with the others; for what each has, one reason."""
    every = [assignments.preferred(assignments.of(one)) for one in chosen.replica_set.placements]
    names = {op: dict.fromkeys(preferred[op][0] for preferred in every) for op in table.home}
    moved = {op: replicated(where) for op, where in names.items() if len(where) > 1}
    reasoned = [
        {op: (device, moved.get(op, first.preferred[op][1])) for op, (device, _) in one.items()}
        for one in every
    ]
    elsewhere = {
        op: replace(there, device="", extra_us=None, change=FREE) if op in moved else there
        for op, there in first.elsewhere.items()
    }
    shares = chosen.replica_set.shares
    others = [Replica(*pair) for pair in zip(reasoned[1:], shares[1:], strict=True)]
    return replace(first, preferred=reasoned[0], elsewhere=elsewhere, replicas=others)


def _elsewhere(
    table: CostTable, problem: Problem, why: Sequence[TaskReason]
) -> dict[int, DeviceAlternative]:
    """What each operation, with those that share its device, would cost on the next one."""
    found: dict[int, DeviceAlternative] = {}
    for group, one in zip(table.groups, why, strict=True):
        other = one.alternative
        name = "" if other is None else problem.devices[other.device].name
        extra = None if other is None else other.extra_us
        there = DeviceAlternative(one.own_us, name, extra, one.change)
        found |= dict.fromkeys(group.ops, there)
    return found
