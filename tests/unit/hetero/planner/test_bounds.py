"""No bound is above the best placement of all."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from sampling import examples
from small_problems import best_of_all, problems

from partita_hetero.planner.arrays.blocks import contract
from partita_hetero.planner.arrays.device_kinds import kinds
from partita_hetero.planner.arrays.problem_arrays import flatten
from partita_hetero.planner.bounds.chain_bound import chain_bound
from partita_hetero.planner.bounds.lower_bounds import critical_path, cut_bound, divisible_load
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Task, Value
from partita_hetero.planner.search.solve import solve

SLACK = 1e-6


def late(singly):
    """Problems whose submodels take all in before they run and bring all out afterwards."""
    return problems(links=False, singly=singly, early=False)


@examples(100)
@given(problems())
def test_cuts_with_prices(problem):
    arrays = flatten(problem)
    bound, places = cut_bound(arrays, kinds(arrays), 60, 2 * arrays.unit_cost[:, 0].sum() + 1)
    assert bound <= best_of_all(problem, "LATENCY") + SLACK
    for place in places:
        assert np.isfinite(arrays.unit_cost[np.arange(arrays.units), place]).all()


@examples(100)
@given(problems())
def test_critical_path_and_divisible_load(problem):
    arrays = flatten(problem)
    parallel = best_of_all(problem, "PARALLEL")
    assert critical_path(arrays) <= parallel + SLACK
    assert divisible_load(arrays) <= min(parallel, best_of_all(problem, "THROUGHPUT")) + SLACK


@examples(150)
@given(st.booleans().flatmap(late))
def test_chains_of_contiguous_placements(problem):
    arrays = flatten(problem)
    blocks = contract(arrays)
    if blocks.hold(arrays):
        bound = chain_bound(arrays, blocks, kinds(arrays), 60)
        assert bound <= best_of_all(problem, "PARALLEL", contiguous=True) + SLACK


def test_a_device_that_runs_tasks_singly_tears_circles():
    """Two tasks of one device stand round one that runs elsewhere."""
    machines = (
        Device("CPU", slots=None, host_memory=True, per_task=True),
        Device("ACC", slots=1),
    )
    tasks = (
        Task("a", (Cost(0), Cost(None)), group="g"),
        Task("b", (Cost(2), Cost(1))),
        Task("c", (Cost(0), Cost(None)), group="g"),
    )
    values = (Value("v", 0, (1,)), Value("w", 1, (2,)))
    problem = Problem(machines, tasks, values, (Link(HOST, 1), Link(1, HOST)))
    assert best_of_all(problem, "PARALLEL", contiguous=True) == 1
    plan = solve(problem, "PARALLEL", 1, True)
    assert (plan.value_us, plan.bound_us <= 1) == (1, True)
    assert not contract(flatten(problem)).hold(flatten(problem))


def chain_of(count, room):
    """Tasks in a row that fill an accelerator by fours; a move costs 3."""
    machines = (
        Device("CPU", slots=None, host_memory=True, per_task=True),
        *(Device(f"ACC.{i}", room) for i in range(3)),
    )
    links = [Link(*ends) for i in (1, 2, 3) for ends in ((HOST, i), (i, HOST))]
    tasks = [Task(f"t{i}", (Cost(50), *[Cost(2)] * 3), weight_bytes=1) for i in range(count)]
    values = [Value(f"v{i}", i, (i + 1,), transfer_us=3) for i in range(count - 1)]
    return Problem(machines, tuple(tasks), tuple(values), tuple(links), early_handover=False)


@pytest.mark.parametrize(("count", "moves"), [(4, 0), (5, 2), (9, 4)])
def test_the_chain_bound_of_a_chain_is_its_optimum(count, moves):
    arrays = flatten(chain_of(count, room=4))
    bound = chain_bound(arrays, contract(arrays), kinds(arrays), 60)
    assert bound == pytest.approx(2 * count + 3 * moves)
