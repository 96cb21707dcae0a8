"""Planning for people: a problem, what they ask of it, the plan, its reasons, and files of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.model.model import Model
from partita_hetero.compile.replicas import replicas_name, replicated
from partita_hetero.options.pins import PinRule
from partita_hetero.placement.lock_file import EITHER, SHARES, Lock, graph_digest
from partita_hetero.planner.problem import constraints
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.report.reasons import TaskReason, reasons
from partita_hetero.planner.report.summary import PlanSummary, summarize
from partita_hetero.planner.search.solve import order_of, solve
from partita_hetero.planner.simulation.plan import Objective, Plan
from partita_hetero.planner.simulation.simulate import objective_value, simulate
from partita_hetero.tuning.chosen_placement import RUNS_DECIDED
from partita_hetero.tuning.replication import (
    FREE,
    alike,
    best_replicas,
    interval_us,
    plan_of_one,
)
from partita_hetero.tuning.scheduler import ROUNDS, Scheduler

EXPLAINING_SECONDS = 5.0
"""For finding out what each task would cost elsewhere, if the search may take as long."""


@dataclass(frozen=True)
class PlanOptions:
    """What a person asks of a plan.

    Attributes:
        devices: Names in order of preference; empty for all of the problem.
        rules: Pins.
        memory: Device to its limit in bytes.
        objective: What to minimize.
        time_limit_s: How long to search.
    """

    devices: Sequence[str] = ()
    rules: Sequence[PinRule] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    objective: Objective = "LATENCY"
    time_limit_s: float = 10.0

    @property
    def explaining_s(self) -> float:
        """How long to look for what each task would cost elsewhere."""
        return min(EXPLAINING_SECONDS, self.time_limit_s)


@dataclass(frozen=True)
class Planned:
    """A plan with all that belongs to it.

    Attributes:
        problem: What was solved.
        plan: A device for each task.
        why: A reason for each task.
        summary: The plan for people.
    """

    problem: Problem
    plan: Plan
    why: Sequence[TaskReason]
    summary: PlanSummary

    def lock(self, model: Model | None = None, drivers: Mapping[str, str] | None = None) -> Lock:
        """The plan as a placement lock.

        Args:
            model: The model, if it is at hand; the lock then holds a digest of its graph.
            drivers: Device to its driver, where known.
        """
        device_of: dict[str, str] = {}
        types: dict[str, str] = {}
        used: dict[str, None] = {}
        for task, *places in zip(self.problem.tasks, *self.plan.assignments, strict=True):
            names = task.ops or (task.name,)
            homes = dict.fromkeys(self.problem.devices[place].name for place in places)
            used |= homes
            for number, name in enumerate(names):
                device_of[name] = EITHER.join(homes)
                types[name] = task.op_types[number] if number < len(task.op_types) else ""
        if model is not None:
            order = [op.name for op in model.ops if op.name in device_of]
            device_of = {name: device_of[name] for name in order}
        listed = [device.name for device in self.problem.devices if device.name in used]
        summary = self.summary
        measured: dict[str, float | str] = {}
        if self.plan.replicas:
            measured[SHARES] = " ".join(f"{share:.3f}" for share in self.plan.shares)
        if summary.measured_us is not None:
            measured["measured_us"] = round(summary.measured_us, 3)
        return Lock(
            model.name if model is not None else self.problem.name,
            graph_digest(model) if model is not None else "",
            {name: (drivers or {}).get(name, "") for name in listed},
            device_of,
            types,
            {
                "objective": summary.objective,
                "value_us": round(summary.value_us, 3),
                "latency_us": round(summary.latency_us, 3),
                "bound_us": round(summary.bound_us, 3),
                "method": summary.method,
                **measured,
            },
        )


def make_plan(problem: Problem, options: PlanOptions) -> Planned:
    """Solves a problem under what a person asks of it.

    Raises:
        PlanError: A wish names a device or an operation that is not there.
        InfeasiblePlanError: No placement keeps the limits and hard pins; says what blocks it.
    """
    problem = _constrained(problem, options)
    groups = alike(problem) if options.objective == "THROUGHPUT" else []
    seconds = options.time_limit_s / (len(groups) + 1)

    def planned(one: Problem) -> Plan:
        return solve(one, options.objective, seconds)

    plan = planned(problem)
    if groups:
        of_one = [plan_of_one(problem, group, planned) for group in groups]
        plan = _spread(problem, plan, [one for one in of_one if one is not None])
    why = _with_shared_tasks(problem, plan, reasons(problem, plan, options.explaining_s))
    return Planned(problem, plan, why, summarize(problem, plan, why))


def race_plans(scheduler: Scheduler, options: PlanOptions) -> Planned:
    """Measures, plans, runs what was planned and what needs no plan, and keeps what is fastest.

    The bound that it comes with holds for the table of costs, as all runs corrected them: of what
    a table does not know it proves nothing.

    Raises:
        PlanError: Nothing can be measured, or a wish names something that is not there.
        InfeasiblePlanError: No placement keeps the limits and hard pins; says what blocks it.
        InferError: No placement could be run.
    """
    seconds = options.time_limit_s / (ROUNDS + 1)

    def planned(problem: Problem) -> Plan:
        return solve(_constrained(problem, options), options.objective, seconds)

    outcome = scheduler.race(planned)
    problem = _constrained(outcome.problem, options)
    ideal = planned(problem)
    assignments = [outcome.assignment, *outcome.replicas]
    plan = _plan_of(problem, ideal, assignments, outcome.shares, outcome.kept.name)
    found = reasons(problem, plan, options.explaining_s, RUNS_DECIDED)
    why = _with_shared_tasks(problem, plan, found)
    return Planned(
        problem, plan, why, summarize(problem, plan, why, outcome.kept, outcome.decision)
    )


def _spread(problem: Problem, plan: Plan, of_one: Sequence[Sequence[int]]) -> Plan:
    """The plan, or replicas if requests that are spread over some are faster by the costs.

    Args:
        problem: What everything costs.
        plan: The best of plans without replicas.
        of_one: Placements that are the best for one of some devices that compute alike.
    """
    found = best_replicas(problem, [plan.assignment, *of_one])
    if found is None or found.value_us >= plan.value_us:
        return plan
    used = [[problem.devices[at].name for at in one] for one in found.assignments]
    return _plan_of(problem, plan, found.assignments, found.shares, replicas_name(used))


def _plan_of(
    problem: Problem,
    ideal: Plan,
    assignments: Sequence[tuple[int, ...]],
    shares: Sequence[float],
    method: str,
) -> Plan:
    """The plan of one placement, or of replicas, beside what is best by the table without these."""
    kept, *others = assignments
    timeline = simulate(problem, kept, ideal.objective)
    value = objective_value(problem, kept, ideal.objective, timeline)
    proof = ideal.proof
    if others:
        value = interval_us(problem, assignments, shares)
        proof = "of plans without replicas"
    is_ideal = kept == ideal.assignment and not others
    return replace(
        ideal,
        assignment=kept,
        value_us=value,
        bound_us=min(ideal.bound_us, value),
        method=ideal.method if is_ideal else method,
        order=order_of(timeline, problem),
        timeline=timeline,
        proof=proof,
        replicas=tuple(others),
        shares=tuple(shares),
    )


def _with_shared_tasks(problem: Problem, plan: Plan, why: Sequence[TaskReason]) -> list[TaskReason]:
    """Reasons, with one of their own for tasks that several devices run."""
    shared = []
    for one, *places in zip(why, *plan.assignments, strict=True):
        homes = dict.fromkeys(problem.devices[place].name for place in places)
        if len(homes) > 1:
            one = replace(one, reason=replicated(homes), alternative=None, change=FREE)
        shared.append(one)
    return shared


def _constrained(problem: Problem, options: PlanOptions) -> Problem:
    """The problem under what a person asks."""
    if options.devices:
        problem = constraints.with_devices(problem, options.devices)
    problem = constraints.with_memory(problem, options.memory)
    return constraints.with_rules(problem, options.rules)
