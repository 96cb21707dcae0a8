"""Plans keep every rule, lie between bound and optimum, and say what nothing can keep."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numba.extending import overload
from sampling import examples
from small_problems import best_of_all, problems, with_soft_pin

from partita.errors import InfeasiblePlanError
from partita_hetero.planner.arrays import compiled_loops, search_clock
from partita_hetero.planner.arrays.problem_arrays import flatten
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Pin, Task, Value
from partita_hetero.planner.search import anneal
from partita_hetero.planner.search import incumbent as searching
from partita_hetero.planner.search.anneal import anneal_parallel
from partita_hetero.planner.search.list_scheduling import list_schedules
from partita_hetero.planner.search.memory_fit import fit, repair
from partita_hetero.planner.search.solve import solve
from partita_hetero.planner.simulation.feasible import broken_rules, is_contiguous
from partita_hetero.planner.simulation.plan import OBJECTIVES
from partita_hetero.planner.simulation.simulate import objective_value, simulate


@examples(25)
@given(problems(most=5), st.sampled_from(OBJECTIVES), st.booleans())
def test_a_small_plan_is_the_best_there_is(problem, objective, contiguous):
    best = best_of_all(problem, objective, contiguous)
    with patch.object(searching, "FEW", 0):  # let the methods find it
        plan = solve(problem, objective, math.inf, contiguous)
    assert not plan.cut
    run = simulate(problem, plan.assignment, objective)
    assert not broken_rules(problem, plan.assignment, run)
    assert not contiguous or is_contiguous(problem, plan.assignment)
    assert plan.value_us == pytest.approx(objective_value(problem, plan.assignment, objective, run))
    assert plan.bound_us <= best + 1e-6
    numbers = (plan.value_us, plan.bound_us, plan.gap, *plan.tried.values())
    assert {type(number) for number in numbers} == {float}  # what files can hold
    assert plan.value_us == pytest.approx(best, rel=1e-4, abs=1e-4)
    assert sorted(plan.order) == list(range(len(problem.tasks)))


def hard_to_search():
    """A placement that no bound proves to be the best, with branches on two devices."""
    machines = (Device("CPU", host_memory=True, slots=1), Device("GPU", slots=1))
    tasks = tuple(Task(f"t{i}", (Cost(2 + i % 3), Cost(1 + i % 4))) for i in range(9))
    values = tuple(Value(f"v{i}", i, (i + 1, i + 2), transfer_us=1 + i % 2) for i in range(7))
    return Problem(machines, tasks, values, (Link(HOST, 1, 1), Link(1, HOST, 1)))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_search_without_a_time_limit_finds_the_same_on_a_busy_machine(
    objective, request, monkeypatch
):
    monkeypatch.setattr(anneal, "MOVES_OF_UNIT", 1_000)  # at all temperatures
    problem = hard_to_search()
    with patch.object(searching, "FEW", 0):
        plan = solve(problem, objective, math.inf)
        request.getfixturevalue("busy_clock")
        again = solve(problem, objective, math.inf)
    assert (again.assignment, again.bound_us) == (plan.assignment, plan.bound_us)
    assert not plan.cut and not again.cut


@pytest.mark.parametrize("objective", ["PARALLEL", "THROUGHPUT"])
def test_a_plan_says_that_the_time_limit_ended_its_search(objective, busy_clock):
    with patch.object(searching, "FEW", 0):
        plan = solve(hard_to_search(), objective, 5)
    assert plan.gap > 0
    assert plan.cut


def test_no_time_of_a_search_passes_while_loops_are_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    start = search_clock.seconds()

    def double(x):
        return 2 * x

    @overload(double)
    def type_double(x):  # numba calls it as it compiles
        now[0] += 5.0
        return double

    @compiled_loops.jit
    def four_times(x):
        return double(double(x))

    assert (four_times(3), four_times(4)) == (12, 16)
    assert now[0] >= 5.0
    assert search_clock.seconds() - start == pytest.approx(0.0, abs=1e-6)
    now[0] += 1.0
    assert search_clock.seconds() - start == pytest.approx(1.0)


def test_the_clock_of_searches_may_be_stopped_twice(monkeypatch):
    now = iter([1.0, 2.0, 4.0, 9.0, 10.0, 16.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    start = search_clock.seconds()
    with search_clock.stopped(), search_clock.stopped():
        pass
    assert search_clock.seconds() - start == pytest.approx(1 + 6)


def test_the_largest_of_few_loads_leaves_a_local_optimum():
    """All ways from the list schedules to the optimum are worse by a large share of the value."""
    machines = (
        Device("CPU", host_memory=True, slots=1),
        Device("GPU.1", launch_us=3),
        Device("GPU.2", launch_us=2),
    )
    costs = ((8, None, 3), (0, None, 7), (7, None, 3), (7, 2, None), (1, 3, 5))
    groups = (None, "h", None, "g", "g")
    tasks = tuple(
        Task(f"t{i}", tuple(map(Cost, row)), group=group)
        for i, (row, group) in enumerate(zip(costs, groups, strict=True))
    )
    values = (
        Value("v0", 0, (), is_output=True, transfer_us=2),
        Value("v1", 1, (2, 3, 4), transfer_us=9),
    )
    links = [Link(*ends, 1) for i in (1, 2) for ends in ((HOST, i), (i, HOST))]
    links += [Link(1, 2, 0.5), Link(2, 1, shared=True)]
    problem = Problem(machines, tasks, values, tuple(links))
    with patch.object(searching, "FEW", 0):
        plan = solve(problem, "THROUGHPUT", math.inf)
    assert plan.value_us == best_of_all(problem, "THROUGHPUT") == 12


def test_launches_and_direct_links_decide_between_equal_loads():
    """Launches apart, one task alone on a device is as good as two on two of them."""
    machines = (
        Device("CPU", host_memory=True, slots=1),
        Device("GPU.1", launch_us=1, slots=1),
        Device("GPU.2", slots=1),
    )
    costs = ((0, None, None), (0, None, 2), (3, 1, None), (0, None, None))
    tasks = tuple(Task(f"t{i}", tuple(map(Cost, row))) for i, row in enumerate(costs))
    links = [Link(*ends, 1) for i in (1, 2) for ends in ((HOST, i), (i, HOST))]
    links += [Link(1, 2, 0.5), Link(2, 1, shared=True)]
    problem = Problem(machines, tasks, (Value("v", 1, (2,), transfer_us=1),), tuple(links))
    with patch.object(searching, "FEW", 0):
        plan = solve(problem, "THROUGHPUT", math.inf)
    assert plan.value_us == best_of_all(problem, "THROUGHPUT") == 2


def test_a_few_units_cross_a_barrier_together():
    """Moving either of two neighbours alone costs a third of the value."""
    machines = (Device("CPU", host_memory=True, slots=1), Device("GPU", slots=1))
    tasks = (
        Task("a", (Cost(1), Cost(None))),
        Task("b", (Cost(0), Cost(1))),
        Task("c", (Cost(1), Cost(1))),
        Task("d", (Cost(1), Cost(None))),
    )
    values = (Value("v", 1, (2,), transfer_us=1),)
    problem = Problem(machines, tasks, values, (Link(HOST, 1, 1), Link(1, HOST, 1)))
    arrays = flatten(problem)
    start = np.zeros(4, np.int64)
    found = anneal_parallel(arrays, start, False, False, math.inf)
    assert (found.value, found.place.tolist()) == (2.0, [0, 1, 1, 0])
    assert found.full


def two_devices(*tasks, values=(), pins=(), room=None):
    machines = (Device("CPU", host_memory=True), Device("GPU", room))
    links = (Link(HOST, 1, 1), Link(1, HOST, 1))
    return Problem(machines, tasks, values, links, pins)


def test_a_hard_pin_is_kept_and_a_soft_one_if_it_pays():
    task = Task("a", (Cost(9), Cost(1)))
    assert solve(two_devices(task), time_limit_s=1).assignment == (1,)
    assert solve(two_devices(task, pins=(Pin(0, 0),)), time_limit_s=1).assignment == (0,)
    weak = solve(with_soft_pin(two_devices(task), 0, 0, 5), time_limit_s=1)
    assert (weak.assignment, weak.value_us) == ((1,), 6)
    strong = solve(with_soft_pin(two_devices(task), 0, 0, 50), time_limit_s=1)
    assert (strong.assignment, strong.value_us) == ((0,), 9)


def test_live_values_count_as_memory():
    # Weights fit either way; the value that both tasks hold does not.
    tasks = [Task(name, (Cost(9), Cost(1)), weight_bytes=10) for name in "ab"]
    values = (Value("v", 0, (1,), 100),)
    assert solve(two_devices(*tasks, values=values, room=200), time_limit_s=1).assignment == (1, 1)
    plan = solve(two_devices(*tasks, values=values, room=100), time_limit_s=1)
    assert plan.assignment == (0, 0)
    assert plan.timeline.peak_bytes == {"CPU": 120, "GPU": 0}


def test_a_task_that_is_too_large_is_named():
    only = Task("big", (Cost(None), Cost(1)), weight_bytes=70)
    with pytest.raises(InfeasiblePlanError, match="Task 'big' needs 70 bytes, 20 more than 'GPU'"):
        solve(two_devices(only, room=50))
    group = [replace(only, name=name, weight_bytes=30, group="g") for name in "abcd"]
    with pytest.raises(InfeasiblePlanError, match="Group of 'a', 'b', 'c' and others needs 120"):
        solve(two_devices(*group, room=50))


def test_tasks_that_are_too_many_for_their_devices_are_named():
    tasks = [Task(f"t{i}", (Cost(None), Cost(1)), weight_bytes=20 + i) for i in range(3)]
    message = (
        "3 tasks or groups run only on 'GPU' and need 63 bytes, 13 more than there is room for "
        r"\(50\). The largest are: Task 't2'; Task 't1'; Task 't0'."
    )
    with pytest.raises(InfeasiblePlanError, match=message):
        solve(two_devices(*tasks, room=50))


def packing(sizes, rooms):
    """Tasks that only devices with limits take."""
    machines = tuple(Device(f"D{i}", room, host_memory=True) for i, room in enumerate(rooms))
    costs = tuple(Cost(1) for _ in rooms)
    return Problem(
        machines, tuple(Task(f"t{i}", costs, weight_bytes=s) for i, s in enumerate(sizes))
    )


def test_a_packing_that_is_hard_to_find_is_found():
    problem = packing([6, 6, 4, 4, 4, 3, 3], [15, 15])  # largest first leaves 3 over
    arrays = flatten(problem)
    place = fit(problem, arrays)
    assert np.bincount(place, arrays.unit_weight, 2).tolist() == [15, 15]


def test_a_packing_that_does_not_exist_is_an_error():
    with pytest.raises(InfeasiblePlanError, match="together they need 18 bytes of 20"):
        solve(packing([6, 6, 6], [10, 10]))


def test_live_values_that_fit_nowhere_are_an_error():
    tasks = [Task(name, (Cost(None), Cost(1))) for name in "ab"]
    values = (Value("v", 0, (1,), 100),)
    with pytest.raises(InfeasiblePlanError, match="Device 'GPU' needs 100 bytes, 50 more than its"):
        solve(two_devices(*tasks, values=values, room=50), time_limit_s=1)


def test_repair_moves_what_loses_least():
    tasks = [
        Task(f"t{i}", (Cost(10 + i), Cost(1)), weight_bytes=10)  # t0 loses least on the CPU
        for i in range(3)
    ]
    arrays = flatten(two_devices(*tasks, room=20))
    assert repair(arrays, np.array([1, 1, 1])).tolist() == [0, 1, 1]


def test_list_schedules_of_a_fork():
    # s feeds a and b. In mean times a matters most; in times deviation b, which goes first then.
    tasks = (
        Task("s", (Cost(1), Cost(1))),
        Task("a", (Cost(10), Cost(10))),
        Task("b", (Cost(12), Cost(4))),
    )
    values = (Value("v", 0, (1, 2), transfer_us=0),)
    places = dict(list_schedules(flatten(two_devices(*tasks, values=values))))
    # HEFT: a first, on the CPU until 11; then b on the GPU until 5.
    assert places["HEFT"].tolist() == [0, 0, 1]
    assert places["HEScheduler"].tolist() == [0, 0, 1]
    slow = two_devices(*tasks, values=(Value("v", 0, (1, 2), transfer_us=20),))
    assert dict(list_schedules(flatten(slow)))["HEFT"].tolist() == [0, 0, 0]


@examples(60)
@given(problems())
def test_list_schedules_keep_groups_and_weights(problem):
    arrays = flatten(problem)
    for _, place in list_schedules(arrays):
        if place is not None:
            assert np.isfinite(arrays.unit_cost[np.arange(arrays.units), place]).all()
            used = np.bincount(place, arrays.unit_weight, len(arrays.limit))
            assert (used <= arrays.limit).all()
