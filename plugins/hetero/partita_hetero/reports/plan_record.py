"""The record of a plan: the run that the cost model foresees, and what each task costs where."""

from __future__ import annotations

from collections.abc import Sequence

from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST
from partita_hetero.planner.report.reasons import TaskReason
from partita_hetero.planner.report.summary import PlanSummary
from partita_hetero.planner.simulation.plan import Plan
from partita_hetero.planner.simulation.simulate import subgraphs_of
from partita_hetero.reports.record import (
    Crossing,
    Operation,
    PlacementRecord,
    SubmodelRecord,
)
from partita_hetero.reports.run_record import costs_elsewhere


def plan_record(
    problem: Problem, plan: Plan, reasons: Sequence[TaskReason], summary: PlanSummary
) -> PlacementRecord:
    """The record of a plan.

    Args:
        problem: What was solved.
        plan: A device for each task.
        reasons: Why each task is where it is.
        summary: The plan for people.
    """
    subgraphs = subgraphs_of(problem, plan.assignment, plan.objective)
    home = {task: number for number, subgraph in enumerate(subgraphs, 1) for task in subgraph.ops}
    used = dict.fromkeys(
        problem.devices[place].name for assignment in plan.assignments for place in assignment
    )
    return PlacementRecord(
        problem.name,
        ", ".join(used),
        "the run that the costs foresee",
        plan.timeline.latency_us,
        _facts(summary),
        summary.notes,
        _operations(problem, plan, reasons, home, [one.device for one in summary.tasks]),
        [SubmodelRecord(one.number, one.device, one.ops, one.us) for one in summary.parts],
        _crossings(problem, plan, home),
        [plan.timeline],
    )


def _facts(summary: PlanSummary) -> dict[str, str]:
    facts = {
        "objective": f"{summary.objective}: {summary.value_us:,.1f} us by the table of costs",
        "bound": f"{summary.bound_us:,.1f} us: at most {summary.gap:.1%} above the optimum of the "
        "table",
        "found by": summary.method,
    }
    if summary.measured_us is not None:
        facts["measured"] = f"{summary.measured_us:,.1f} us when it was run"
    return facts


def _operations(
    problem: Problem,
    plan: Plan,
    reasons: Sequence[TaskReason],
    home: dict[int, int],
    where: Sequence[str],
) -> list[Operation]:
    moved = [task.weight_bytes for task in problem.tasks]
    for value in problem.values:
        for reader in value.consumers:
            moved[reader] += value.nbytes
        if value.producer is not None:
            moved[value.producer] += value.nbytes
    there = costs_elsewhere(problem)
    found = []
    for index, (task, why) in enumerate(zip(problem.tasks, reasons, strict=True)):
        best = why.alternative
        next_best = "" if best is None else problem.devices[best.device].name
        if best is not None and best.extra_us is not None:
            next_best += f" {best.extra_us:+,.1f} us"
        found.append(
            Operation(
                name=task.name,
                op_type=", ".join(task.op_types),
                device=where[index],
                part=home[index],
                us=why.own_us,
                nbytes=moved[index],
                kernel="",
                computed_with="",
                reason=str(why.reason.code),
                why=str(why.reason),
                next_best=next_best,
                change=why.change,
                elsewhere=there[task.name],
            )
        )
    return found


def _crossings(problem: Problem, plan: Plan, home: dict[int, int]) -> list[Crossing]:
    """Values between submodels, each once for a reader, and those that come in or go out."""
    found = []
    for value in problem.values:
        source = HOST if value.producer is None else plan.assignment[value.producer]
        own = None if value.producer is None else home[value.producer]
        ends = {home[task]: plan.assignment[task] for task in value.consumers if home[task] != own}
        targets: list[tuple[int | None, int]] = [*ends.items()]
        targets += [(None, HOST)] if value.is_output else []
        for reader, target in targets:
            link = problem.link(source, target)
            how = "through the host" if link is None else "shared" if link.shared else "moved"
            found.append(Crossing(value.name, own, reader, how, value.nbytes))
    return found
