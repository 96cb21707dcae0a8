"""Methods that prove what they find agree with trying everything."""

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
from partita_hetero.planner.bounds.intervals import best_stretches
from partita_hetero.planner.bounds.minimum_cut import minimum_cut, two_devices
from partita_hetero.planner.search.ideals import best_contiguous
from partita_hetero.planner.search.milp import solve_milp
from partita_hetero.planner.simulation.simulate import objective_value, one_subgraph_each, simulate


def value_of(problem, arrays, place, objective):
    assignment = arrays.tasks(place)
    run = simulate(problem, assignment, objective)
    return objective_value(problem, assignment, objective, run)


@examples(150)
@given(problems(devices=2, launches=False, limits=False))
def test_the_minimum_cut_is_the_best_of_two_devices_in_sequence(problem):
    arrays = flatten(problem)
    bound, second = minimum_cut(arrays, two_devices(arrays))
    best = best_of_all(problem, "LATENCY")
    assert value_of(problem, arrays, second.astype(np.int64), "LATENCY") == pytest.approx(best)
    assert bound == pytest.approx(best, rel=1e-6)
    assert bound <= best + 1e-9


@examples(100)
@given(problems(launches=False, links=False, alike=True))
def test_ideals_give_the_best_contiguous_split(problem):
    arrays = flatten(problem)
    blocks, alike = contract(arrays), kinds(arrays)
    complete, value, place = best_contiguous(arrays, blocks, alike, np.inf, 60)
    assert complete
    assert value == pytest.approx(best_of_all(problem, "THROUGHPUT", contiguous=True))
    assert value == pytest.approx(value_of(problem, arrays, place, "THROUGHPUT"))
    assert one_subgraph_each(problem, arrays.tasks(place)) is not None


@examples(60)
@given(problems(launches=False, links=False, limits=False))
def test_ideals_find_nothing_below_the_best(problem):
    arrays = flatten(problem)
    best = best_of_all(problem, "THROUGHPUT", contiguous=True)
    found = best_contiguous(arrays, contract(arrays), kinds(arrays), best, 60)
    assert found == (True, best, None)


@examples(60)
@given(problems(launches=False, links=False), st.booleans())
def test_stretches_are_contiguous_and_keep_the_limits(problem, busiest):
    arrays = flatten(problem)
    blocks, alike = contract(arrays), kinds(arrays)
    for order in blocks.orders():
        place = best_stretches(arrays, blocks, order, alike, busiest)
        assert one_subgraph_each(problem, arrays.tasks(place)) is not None
        used = np.bincount(place, arrays.unit_weight, len(arrays.limit))
        assert (used <= arrays.limit).all()


@examples(40)
@given(problems(launches=False, links=False, alike=True, most=5))
def test_stretches_of_a_chain_are_the_best_contiguous_split(problem):
    count = len(problem.tasks)
    chain = [v for v in problem.values if v.producer is None or v.producer + 1 in v.consumers]
    if len(chain) < count or any(task.group for task in problem.tasks):
        return
    arrays = flatten(problem)
    blocks = contract(arrays)
    place = best_stretches(arrays, blocks, blocks.orders()[0], kinds(arrays), True)
    best = best_of_all(problem, "THROUGHPUT", contiguous=True)
    assert value_of(problem, arrays, place, "THROUGHPUT") == pytest.approx(best)


@examples(40)
@given(problems(launches=False, links=False, most=5), st.sampled_from(["LATENCY", "THROUGHPUT"]))
def test_the_programme_proves_the_best(problem, objective):
    arrays = flatten(problem)
    best = best_of_all(problem, objective)
    complete, bound, place = solve_milp(arrays, objective == "THROUGHPUT", 2 * best + 1, 30)
    assert complete
    assert bound == pytest.approx(best, rel=1e-3, abs=1e-3)
    assert value_of(problem, arrays, place, objective) == pytest.approx(best, rel=1e-3, abs=1e-3)
