"""Small random placement problems, and what is best for them by trying everything."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st

from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Pin, Task, Value
from partita_hetero.planner.simulation.feasible import broken_rules, is_contiguous
from partita_hetero.planner.simulation.simulate import objective_value, simulate

whole = st.integers(0, 9)


@st.composite
def problems(
    draw,
    devices=3,
    launches=True,
    limits=True,
    links=True,
    alike=False,
    singly=False,
    early=None,
    most=6,
):
    """A problem of a few tasks whose first device works in host memory and takes everything."""
    count, number = draw(st.integers(1, most)), draw(st.integers(2, devices))
    machines = [Device("CPU", host_memory=True, per_task=singly, slots=None if singly else 1)]
    ways = []
    limit = draw(st.none() | st.integers(5, 20)) if limits else None
    for index in range(1, number):
        launch = draw(st.integers(0, 3)) if launches else 0
        machines.append(Device(f"GPU.{index}", limit, launch))
        ways += [Link(HOST, index, 1), Link(index, HOST, 1)]
    if links and number == 3 and draw(st.booleans()):
        ways += [Link(1, 2, 0.5), Link(2, 1, shared=True)]
    tasks = []
    for index in range(count):
        there = st.integers(1, 9).map(Cost) if alike else (st.integers(1, 9) | st.none()).map(Cost)
        others = [draw(there)] * (number - 1) if alike else [draw(there) for _ in range(number - 1)]
        group = draw(st.sampled_from([None, None, None, "g", "h"]))
        weight = draw(whole) if limits else 0
        tasks.append(
            Task(f"t{index}", (Cost(draw(whole)), *others), weight_bytes=weight, group=group)
        )
    later = [st.sets(st.integers(i + 1, count - 1), max_size=3) for i in range(count - 1)]
    values = [
        Value(f"v{i}", i, tuple(sorted(draw(readers))), 0, draw(st.booleans()), draw(whole))
        for i, readers in enumerate([*later, st.just(())])
    ]
    values.append(Value("x", None, tuple(range(draw(st.integers(0, count)))), transfer_us=2))
    return Problem(
        tuple(machines),
        tuple(tasks),
        tuple(values),
        tuple(ways),
        early_handover=draw(st.booleans()) if early is None else early,
    )


def with_soft_pin(problem, task, device, penalty):
    """The problem with one wish more."""
    return problem.with_pins([*problem.pins, Pin(task, device, False, penalty)])


def best_of_all(problem, objective, contiguous=False):
    """Value of the best placement that keeps every rule; None if there is none."""
    best = None
    for choice in itertools.product(range(len(problem.devices)), repeat=len(problem.groups)):
        assignment = [0] * len(problem.tasks)
        for members, device in zip(problem.groups, choice, strict=True):
            for member in members:
                assignment[member] = device
        if any(
            problem.tasks[op].costs[device].us is None for op, device in enumerate(assignment)
        ) or (contiguous and not is_contiguous(problem, assignment)):
            continue
        run = simulate(problem, assignment, objective)
        if not broken_rules(problem, assignment, run):
            value = objective_value(problem, assignment, objective, run)
            best = value if best is None else min(best, value)
    return best
