"""Reasons agree with runs simulated by hand; constraints keep what they do not touch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.contract.query import ReasonCode
from partita.errors import PlanError
from partita_hetero.options.pins import read_rules
from partita_hetero.planner.problem.constraints import (
    SOFT_PENALTY_US,
    with_devices,
    with_memory,
    with_rules,
)
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Pin, Task, Value
from partita_hetero.planner.report.reasons import reasons
from partita_hetero.planner.simulation.feasible import broken_rules
from partita_hetero.planner.simulation.plan import Plan
from partita_hetero.planner.simulation.simulate import objective_value, simulate


def problem_of(times, groups=None, memory=None, weights=1000):
    """A chain of tasks over devices N (moves cost 5 us) and C (in host memory)."""
    tasks = tuple(
        Task(
            f"t{i}",
            tuple(
                Cost(us, reason="" if us is not None else "UNSUPPORTED_DTYPE: f64") for us in pair
            ),
            op_types=("Conv",),
            weight_bytes=weights,
            group=(groups or {}).get(i),
        )
        for i, pair in enumerate(times)
    )
    last = len(tasks) - 1
    values = [Value("x", None, (0,), 100)]
    values += [
        Value(f"v{i}", i, (i + 1,) if i < last else (), 100, i == last) for i in range(len(tasks))
    ]
    devices = (Device("N", memory_bytes=memory), Device("C", host_memory=True))
    return Problem(devices, tasks, tuple(values), (Link(HOST, 0, 5.0), Link(0, HOST, 5.0)))


def plan_of(problem, assignment, objective="LATENCY"):
    timeline = simulate(problem, assignment, objective)
    value = objective_value(problem, assignment, objective, timeline)
    order = tuple(range(len(problem.tasks)))
    return Plan(tuple(assignment), objective, value, 0.0, "by hand", order, timeline)


@st.composite
def placed(draw):
    count = draw(st.integers(1, 6))
    times = [
        draw(
            st.tuples(
                st.one_of(st.none(), st.integers(1, 50).map(float)), st.integers(1, 50).map(float)
            )
        )
        for _ in range(count)
    ]
    problem = problem_of(times, memory=draw(st.sampled_from([None, 2500])))
    assignment = [1 if npu is None else draw(st.integers(0, 1)) for npu, _ in times]
    return problem, assignment, draw(st.sampled_from(["LATENCY", "PARALLEL", "THROUGHPUT"]))


@examples(80)
@given(placed())
def test_the_extra_time_is_that_of_the_moved_run(case):
    problem, assignment, objective = case
    plan = plan_of(problem, assignment, objective)
    for task, why in enumerate(reasons(problem, plan)):
        other = 1 - assignment[task]
        if problem.tasks[task].costs[other].us is None:
            assert why.alternative is None
            assert why.reason.code is ReasonCode.UNSUPPORTED_DTYPE
            continue
        moved = list(assignment)
        moved[task] = other
        there = plan_of(problem, moved, objective)
        extra = there.value_us - plan.value_us
        assert why.alternative.device == other
        assert why.alternative.extra_us == pytest.approx(extra)
        assert why.alternative.own_us == problem.tasks[task].costs[other].us
        blocked = bool(broken_rules(problem, moved, there.timeline))
        assert bool(why.alternative.obstacle) == blocked
        if extra < -1e-6:
            expected = ReasonCode.MEMORY_LIMIT if blocked else ReasonCode.MERGED
        elif problem.tasks[task].costs[assignment[task]].us > why.alternative.own_us:
            expected = ReasonCode.MERGED
        else:
            expected = ReasonCode.CHEAPER_BY
        assert why.reason.code is expected


def test_tasks_that_share_a_device_move_together():
    problem = problem_of([(10.0, 30.0), (40.0, 30.0)], groups={0: "g", 1: "g"})
    first, second = reasons(problem, plan_of(problem, [0, 0]))
    assert first.alternative == second.alternative
    assert first.alternative.own_us == 60
    assert first.alternative.extra_us == pytest.approx(60 - (5 + 50 + 5))
    assert (first.own_us, second.own_us) == (10, 40)


def test_without_time_only_the_task_and_its_values_are_looked_at():
    problem = problem_of([(10.0, 30.0), (10.0, 30.0), (10.0, 30.0)], memory=3500)
    found = reasons(problem, plan_of(problem, [0, 1, 0]), time_limit_s=0.0)
    middle = found[1]
    assert not middle.alternative.exact
    assert middle.alternative.extra_us == pytest.approx(-20 - 2 * 5)
    assert middle.reason.code is ReasonCode.MERGED
    assert "about" in middle.reason.detail
    tight = problem_of([(10.0, 30.0), (10.0, 30.0), (10.0, 30.0)], memory=2300)
    (_, middle, _) = reasons(tight, plan_of(tight, [0, 1, 0]), time_limit_s=0.0)
    assert middle.reason.code is ReasonCode.MEMORY_LIMIT
    assert "leaves no room for 1000 more" in middle.reason.detail


def test_pins_and_lone_devices_are_told():
    problem = problem_of([(10.0, 1.0)]).with_pins([Pin(0, 0)])
    (why,) = reasons(problem, plan_of(problem, [0]))
    assert (why.reason.code, why.reason.detail) == (ReasonCode.PINNED, "pinned to N")
    assert why.change == "drop the pin: C is 19 us faster"
    soft = problem.with_pins([Pin(0, 0, hard=False, penalty_us=50.0)])
    (why,) = reasons(soft, plan_of(soft, [0]))
    assert why.reason.detail == "softly pinned to N"
    assert why.change == "drop the pin: C is 31 us slower"  # with the penalty
    alone = with_devices(problem_of([(10.0, 1.0)]), ["C"])
    (why,) = reasons(alone, plan_of(alone, [0]))
    assert (why.reason.detail, why.change) == ("the only device", "a second device")


# --------------------------------------------------------------------------------- constraints


def test_a_choice_of_devices_keeps_costs_links_and_pins():
    problem = problem_of([(1.0, 2.0), (3.0, 4.0)], memory=9).with_pins([Pin(0, 0), Pin(1, 1)])
    swapped = with_devices(problem, ["C", "N"])
    assert [device.name for device in swapped.devices] == ["C", "N"]
    assert [[cost.us for cost in task.costs] for task in swapped.tasks] == [[2, 1], [4, 3]]
    assert {(link.source, link.target) for link in swapped.links} == {(HOST, 1), (1, HOST)}
    assert [(pin.task, pin.device) for pin in swapped.pins] == [(0, 1), (1, 0)]
    assert with_devices(swapped, ["N", "C"]) == problem
    only = with_devices(problem, ["C"])
    assert (only.links, [pin.task for pin in only.pins]) == ((), [1])
    for assignment in ([0, 0], [0, 1], [1, 0], [1, 1]):
        other = [1 - place for place in assignment]
        assert plan_of(problem, assignment).value_us == plan_of(swapped, other).value_us


def test_limits_replace_those_of_the_named_devices():
    problem = with_memory(problem_of([(1.0, 2.0)], memory=9), {"C": 7})
    assert [device.memory_bytes for device in problem.devices] == [9, 7]
    with pytest.raises(PlanError, match="There is no device 'X'"):
        with_memory(problem, {"X": 1})


def test_rules_reach_tasks_through_their_operations():
    task = Task("whole", (Cost(1.0), Cost(None)), ops=("a", "b"), op_types=("Conv", "Relu"))
    problem = Problem(
        (Device("C", host_memory=True), Device("D", host_memory=True)), (task,), name="p"
    )
    assert with_rules(problem, read_rules(["type:Relu=C"])).pins == (Pin(0, 0),)
    soft = with_rules(problem, read_rules(["a=C?"])).pins
    assert soft == (Pin(0, 0, False, SOFT_PENALTY_US),)
    assert with_rules(problem, read_rules(["a=D?"])).pins == ()  # D refuses it
    with pytest.raises(PlanError, match="Task 'whole' holds operations that share a device, and"):
        with_rules(problem, read_rules(["a=C", "b=D"]))
    assert with_rules(problem, read_rules(["a=C", "b=D?"])).pins == (Pin(0, 0),)
    kept = problem.with_pins([Pin(0, 0)])
    assert with_rules(kept, []).pins == kept.pins
