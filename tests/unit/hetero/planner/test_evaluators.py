"""The compiled evaluators give what the simulator gives."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from sampling import examples
from small_problems import problems

from partita_hetero.planner.arrays.flow_time import parallel_us
from partita_hetero.planner.arrays.loads import device_loads, move
from partita_hetero.planner.arrays.problem_arrays import flatten
from partita_hetero.planner.simulation.feasible import is_contiguous
from partita_hetero.planner.simulation.simulate import simulate


def placed(data, arrays):
    """A random device for each unit, of those that take it."""
    places = [
        data.draw(st.sampled_from(np.flatnonzero(np.isfinite(costs)).tolist()))
        for costs in arrays.unit_cost
    ]
    return np.array(places, np.int64)


@examples(200)
@given(st.data(), st.booleans().flatmap(lambda singly: problems(singly=singly)))
def test_the_parallel_latency(data, problem):
    arrays = flatten(problem)
    assignment = arrays.tasks(placed(data, arrays))
    place = np.array(assignment)
    latency = pytest.approx(simulate(problem, assignment, "PARALLEL").latency_us)
    assert parallel_us(arrays, place, problem.early_handover, False) == latency
    whole = is_contiguous(problem, assignment)
    contiguous = parallel_us(arrays, place, problem.early_handover, True)
    assert contiguous == (latency if whole else np.inf)


@examples(150)
@given(st.data(), problems(launches=False))
def test_the_loads_and_what_moves_do_to_them(data, problem):
    arrays = flatten(problem)
    place = placed(data, arrays)
    load, used, readers = device_loads(arrays, place)
    run = simulate(problem, arrays.tasks(place), "THROUGHPUT")
    assert load == pytest.approx(list(run.load_us().values()))
    for unit, target in enumerate(placed(data, arrays)):
        move(arrays, place, load, used, readers, unit, target)
    for kept, fresh in zip((load, used, readers), device_loads(arrays, place), strict=True):
        assert kept == pytest.approx(fresh)
