"""A plan for people: what it promises, what each device does, and what else was possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.contract.explanation import Candidate, Decision
from partita.contract.query import Reason
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.report.reasons import TaskReason
from partita_hetero.planner.simulation.feasible import broken_rules
from partita_hetero.planner.simulation.plan import Plan
from partita_hetero.planner.simulation.simulate import objective_value, simulate, subgraphs_of


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one device does.

    Attributes:
        device: Its name.
        ops: How many operations it runs.
        load_us: Time that it is in use.
        share: That, as a share of the latency.
        weight_bytes: Weights that it holds.
        peak_bytes: Weights and values that it holds at most.
        limit_bytes: Its memory limit, or ``None``.
    """

    device: str
    ops: int
    load_us: float
    share: float
    weight_bytes: int
    peak_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task.

    Attributes:
        task: Its name.
        device: Where it runs.
        us: Its time there.
        reason: Why it is there.
        elsewhere: The next best device; empty if no other takes it.
        extra_us: What the objective would lose by that.
        change: What would change its place.
    """

    task: str
    device: str
    us: float
    reason: Reason
    elsewhere: str
    extra_us: float | None
    change: str


@dataclass(frozen=True, slots=True)
class PlannedSubmodel:
    """One submodel.

    Attributes:
        number: From 1, in an order in which they can run.
        device: Where it runs.
        ops: How many operations it has.
        first: Its first task.
        last: Its last task.
        us: Time of its tasks, without launch and moves.
    """

    number: int
    device: str
    ops: int
    first: str
    last: str
    us: float


@dataclass(frozen=True, slots=True)
class Rival:
    """Another placement.

    Attributes:
        name: ``"only CPU"`` or ``"greedy"``.
        value_us: The objective, or ``None`` if it is impossible.
        obstacle: Why it is impossible.
    """

    name: str
    value_us: float | None
    obstacle: str = ""


@dataclass(frozen=True)
class PlanSummary:
    """A plan with all that a person asks about it.

    Attributes:
        model: The problem's name.
        objective: What was minimized.
        value_us: The objective.
        latency_us: Of one request.
        bound_us: No placement is better than this.
        gap: How far the plan can at most be from the optimum, as a share of its value.
        method: What found it.
        proof: What gave the bound.
        seconds: Time that planning took.
        estimated: How many tasks have a time that was not measured, on the device that they got.
        bytes_moved: Between memories, in one run.
        transfers: How many moves.
        devices: What each device does.
        parts: The submodels.
        rivals: Other placements.
        tasks: Where each task is, and why.
        measured_us: What the placement took when it was run; ``None`` if it was not.
        spread_us: Half of the runs took a time within so much of that.
        kept: Which of those that were run it is, as ``"plan"`` or ``"only CPU"``.
        raced: All that were run, in turns; empty if none was.
        notes: What could not be measured, and why.
        cut: Whether the search ended before it was through.
    """

    model: str
    objective: str
    value_us: float
    latency_us: float
    bound_us: float
    gap: float
    method: str
    proof: str
    seconds: float
    estimated: int
    bytes_moved: int
    transfers: int
    devices: Sequence[DeviceUse]
    parts: Sequence[PlannedSubmodel]
    rivals: Sequence[Rival]
    tasks: Sequence[PlannedTask]
    measured_us: float | None = None
    spread_us: float | None = None
    kept: str = ""
    raced: Sequence[Candidate] = ()
    notes: Sequence[str] = ()
    cut: bool = False


def summarize(
    problem: Problem,
    plan: Plan,
    reasons: Sequence[TaskReason],
    kept: Candidate | None = None,
    decision: Decision | None = None,
) -> PlanSummary:
    """Collects what a report shows of a plan.

    Args:
        problem: What was placed.
        plan: The placement, and its simulated run.
        reasons: By task why it is where it is.
        kept: The placement that was kept in the end, where several were run.
        decision: How these compared.
    """
    timeline = plan.timeline
    latency = timeline.latency_us
    placed = list(zip(problem.tasks, plan.assignment, strict=True))
    homes = list(zip(problem.tasks, zip(*plan.assignments, strict=True), strict=True))
    held = [
        [task for task, places in homes if index in places] for index in range(len(problem.devices))
    ]
    load, peaks = _loads(problem, plan)
    uses = [
        DeviceUse(
            device.name,
            sum(len(task.ops) or 1 for task in held[index]),
            load.get(device.name, 0.0),
            load.get(device.name, 0.0) / latency if latency else 0.0,
            sum(task.weight_bytes for task in held[index]),
            peaks.get(device.name, 0),
            device.memory_bytes,
        )
        for index, device in enumerate(problem.devices)
    ]
    return PlanSummary(
        problem.name,
        plan.objective,
        plan.value_us,
        latency,
        plan.bound_us,
        plan.gap,
        plan.method,
        plan.proof,
        plan.seconds,
        sum(task.costs[place].source != "measured" for task, place in placed),
        timeline.bytes_moved(),
        sum(span.kind == "transfer" for span in timeline.spans),
        uses,
        _submodels(problem, plan),
        rivals(problem, plan),
        [
            _task(problem, task.name, places, why)
            for task, why, *places in zip(problem.tasks, reasons, *plan.assignments, strict=True)
        ],
        None if kept is None else kept.measured_us,
        None if kept is None else kept.spread_us,
        "" if kept is None else kept.name,
        () if decision is None else decision.candidates,
        () if decision is None else decision.notes,
        plan.cut,
    )


def _loads(problem: Problem, plan: Plan) -> tuple[Mapping[str, float], Mapping[str, int]]:
    """Time that each device is in use for a request on the average, and its most bytes."""
    if not plan.replicas:
        return plan.timeline.load_us(), plan.timeline.peak_bytes
    load: dict[str, float] = {}
    peaks: dict[str, int] = {}
    for assignment, share in zip(plan.assignments, plan.shares, strict=True):
        alone = simulate(problem, assignment, plan.objective)
        for device, us in alone.load_us().items():
            load[device] = load.get(device, 0.0) + share * us
        for device, nbytes in alone.peak_bytes.items():
            peaks[device] = max(nbytes, peaks.get(device, 0))
    return load, peaks


def _task(problem: Problem, name: str, places: Sequence[int], why: TaskReason) -> PlannedTask:
    other = why.alternative
    return PlannedTask(
        name,
        " or ".join(dict.fromkeys(problem.devices[place].name for place in places)),
        why.own_us,
        why.reason,
        "" if other is None else problem.devices[other.device].name,
        None if other is None else other.extra_us,
        why.change,
    )


def rivals(problem: Problem, plan: Plan) -> list[Rival]:
    """Each device alone, and every task on the first device that takes it."""
    count = len(problem.tasks)
    placements = [
        (f"only {device.name}", [index] * count) for index, device in enumerate(problem.devices)
    ]
    greedy = [
        next((i for i, cost in enumerate(task.costs) if cost.us is not None), 0)
        for task in problem.tasks
    ]
    free = problem.with_pins(())
    found = []
    for name, assignment in [*placements, ("greedy", greedy)]:
        refused = [
            task
            for task, place in zip(problem.tasks, assignment, strict=True)
            if task.costs[place].us is None
        ]
        if refused:
            what = f"refuses {len(refused)} of {count} tasks, '{refused[0].name}' first"
            found.append(Rival(name, None, what))
            continue
        timeline = simulate(free, assignment, plan.objective, name)
        broken = broken_rules(free, assignment, timeline)
        value = objective_value(free, assignment, plan.objective, timeline)
        found.append(Rival(name, None if broken else value, " ".join(broken)))
    return found


def _submodels(problem: Problem, plan: Plan) -> list[PlannedSubmodel]:
    every = (subgraphs_of(problem, assignment, plan.objective) for assignment in plan.assignments)
    subgraphs = [subgraph for one in every for subgraph in one]
    return [
        PlannedSubmodel(
            number,
            problem.devices[subgraph.device].name,
            sum(len(problem.tasks[task].ops) or 1 for task in subgraph.ops),
            problem.tasks[subgraph.ops[0]].name,
            problem.tasks[subgraph.ops[-1]].name,
            sum(problem.tasks[task].costs[subgraph.device].us or 0.0 for task in subgraph.ops),
        )
        for number, subgraph in enumerate(subgraphs, 1)
    ]
