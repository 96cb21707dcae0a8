"""Simulated annealing: takes a placement and improves it by moving single units or runs of them.

A move is kept if it is better or, with a probability that falls over time, if it is worse
(Metropolis). Most moves bring a unit to the device of one of its neighbours.

The temperature falls with the time that is spent; without a time limit it falls with the number of
moves, so that what is found depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.arrays.compiled_loops import copy_row, jit, loop_part
from partita_hetero.planner.arrays.flow_time import parallel_us
from partita_hetero.planner.arrays.loads import device_loads, move
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays

HOT = 0.03
"""First temperature, as a share of the lowest value so far, where one unit can decide it."""

HOT_OF_UNIT = 1.0
"""First temperature for sums, as a share of what a unit adds on average."""

COOLING = 0.01
"""Last temperature, as a share of the first."""

GUIDE = 0.1
"""How much the loads of all devices count beside the largest one."""


MOVES_OF_UNIT = 10_000
"""How many moves a search without a time limit makes, for each unit."""

STAGES = 100
"""At how many temperatures it makes them."""


class Annealed(NamedTuple):
    """What a search found.

    Attributes:
        value: The lowest value seen.
        place: Device of each unit there.
        full: Whether it made at least as many moves as a search without a time limit makes.
    """

    value: float
    place: Array
    full: bool


class Stage(NamedTuple):
    """Some moves at one temperature.

    Attributes:
        value: Of the placement that they begin with.
        lowest: The lowest value so far.
        heat: The temperature.
        moves: How many.
        seed: Of the random moves.
    """

    value: float
    lowest: float
    heat: float
    moves: int
    seed: int


def anneal_parallel(
    arrays: Arrays,
    place: Array,
    early: bool,
    contiguous: bool,
    seconds: float,
    seed: int = 1,
) -> Annealed:
    """Improves the PARALLEL latency of a placement that keeps the memory limits.

    Args:
        arrays: The problem.
        place: Device of each unit.
        early: How submodels are cut, see :func:`parallel_us`.
        contiguous: Whether each device gets one contiguous subgraph, as it does in ``place``.
        seconds: How long to search, apart from compiling; may be infinite.
        seed: Of the random moves.
    """
    now, best = place.copy(), place.copy()

    def steps(stage: Stage) -> Any:
        return _steps_parallel(arrays, now, best, early, contiguous, stage)

    hot = _hot_of_largest(len(now))
    value = _parallel_value(arrays, now, early, contiguous)
    lowest, full = _cool(steps, hot, value, len(now), seconds, seed)
    return Annealed(lowest, best, full)


def anneal_loads(
    arrays: Arrays, place: Array, busiest: bool, seconds: float, seed: int = 1
) -> Annealed:
    """Improves the largest load or the sum of loads, launches apart; see :func:`anneal_parallel`.

    A move costs time only for the values of the units moved, so large models are no problem.

    Args:
        arrays: The problem.
        place: Device of each unit; it keeps the memory limits.
        busiest: Whether the largest load counts; otherwise their sum does.
        seconds: How long to search, apart from compiling; may be infinite.
        seed: Of the random moves.
    """
    now, best = place.copy(), place.copy()
    load, used, readers = device_loads(arrays, now)

    def steps(stage: Stage) -> Any:
        return _steps_loads(arrays, now, best, load, used, readers, busiest, stage)

    value = _load_value(arrays, load, busiest)
    hot = _hot_of_largest(len(now)) if busiest else HOT_OF_UNIT / len(now)
    lowest, full = _cool(steps, hot, value, len(now), seconds, seed)
    return Annealed(lowest, best, full)


def _hot_of_largest(units: int) -> float:
    """First temperature of a largest sum: of a few units each is a large share of it."""
    return max(HOT, HOT_OF_UNIT / units)


def _cool(
    steps: Callable[[Stage], Any], hot: float, value: float, units: int, seconds: float, seed: int
) -> tuple[float, bool]:
    """Runs batches of steps while the temperature falls.

    Args:
        steps: Makes the moves of a stage; returns the value then, and the lowest so far.
        hot: First temperature, as a share of the lowest value.
        value: Of the placement that the search begins with.
        units: How many units can be moved.
        seconds: How long to search, apart from compiling; may be infinite.
        seed: Of the random moves of the first stage; each later one has its own.

    Returns:
        The lowest value seen, and whether the search was full, see :class:`Annealed`.
    """
    whole = MOVES_OF_UNIT * units
    timed = seconds < math.inf
    batch = 16 if timed else max(whole // STAGES, 1)
    lowest, moves, gone = value, 0, 0.0
    steps(Stage(value, lowest, 1.0, 0, seed))  # compiles them, which is no searching
    start = search_clock.seconds()
    while gone < 1:
        heat = lowest * hot * COOLING**gone
        before = search_clock.seconds()
        value, lowest = steps(Stage(value, lowest, heat, batch, seed))
        seed += 1
        moves += batch
        if not timed:
            gone = moves / whole
            continue
        if search_clock.seconds() - before < 0.01:
            batch *= 2
        gone = (search_clock.seconds() - start) / seconds
    return lowest, moves >= whole


@jit
def _parallel_value(arrays: Arrays, place: Array, early: bool, contiguous: bool) -> float:
    penalty = 0.0
    for unit in range(len(place)):
        penalty += arrays.penalty[unit, place[unit]]
    return float(parallel_us(arrays, place[arrays.unit_of], early, contiguous) + penalty)


@jit
def _steps_parallel(
    arrays: Arrays,
    place: Array,
    best: Array,
    early: bool,
    contiguous: bool,
    stage: Stage,
) -> tuple[float, float]:
    """Makes some moves at one temperature, and takes back those that are not accepted.

    Args:
        arrays: The problem.
        place: Device of each unit; the moves change it.
        best: Receives the placement of the lowest value, if one is lower than any before.
        early: How submodels are cut, see :func:`parallel_us`.
        contiguous: Whether each device gets one contiguous subgraph.
        stage: The temperature, and how many moves.

    Returns:
        The value of ``place``, and the lowest so far.
    """
    value, lowest, heat, count, seed = stage
    np.random.seed(seed)
    used = np.zeros(len(arrays.slots))
    for unit in range(len(place)):
        used[place[unit]] += arrays.unit_weight[unit]
    changed = np.empty(64, np.int64)
    old = np.empty(64, np.int64)
    for _ in range(count):
        number = _propose(arrays, place, changed, old)
        if number == 0:
            continue
        fits = True
        for i in range(number):
            unit = changed[i]
            used[old[i]] -= arrays.unit_weight[unit]
            used[place[unit]] += arrays.unit_weight[unit]
        for i in range(number):
            unit = changed[i]
            fits &= used[place[unit]] <= arrays.limit[place[unit]]
            fits &= arrays.unit_cost[unit, place[unit]] < np.inf
        after = np.inf
        if fits:
            after = _parallel_value(arrays, place, early, contiguous)
        if after <= value or np.random.random() < np.exp((value - after) / heat):
            value = after
            if value < lowest - 1e-9:
                lowest = value
                copy_row(best, place)
            continue
        for i in range(number - 1, -1, -1):
            unit = changed[i]
            used[place[unit]] -= arrays.unit_weight[unit]
            used[old[i]] += arrays.unit_weight[unit]
            place[unit] = old[i]
    return value, lowest


@jit
def _load_value(arrays: Arrays, load: Array, busiest: bool) -> float:
    """What is minimized; for the largest load all others count a little, to lead the way."""
    if not busiest:
        return float(load.sum())
    most = 0.0
    squares = 0.0
    for device in range(len(load)):
        if arrays.slots[device] > 0:
            share = load[device] / arrays.slots[device]
            most = max(most, share)
            squares += share * share
    return float(most + GUIDE * np.sqrt(squares / len(load)))


@jit
def _steps_loads(
    arrays: Arrays,
    place: Array,
    best: Array,
    load: Array,
    used: Array,
    readers: Array,
    busiest: bool,
    stage: Stage,
) -> tuple[float, float]:
    """Makes some moves at one temperature, and takes back those that are not accepted.

    Args:
        arrays: The problem.
        place: Device of each unit; the moves change it, and the next three arrays with it.
        best: Receives the placement of the lowest value, if one is lower than any before.
        load: Time of each device.
        used: Memory of each device in use.
        readers: How many tasks of each device read each value, as `device_loads` counts them.
        busiest: Whether the largest load counts; otherwise their sum does.
        stage: The temperature, and how many moves.

    Returns:
        The value of ``place``, and the lowest so far.
    """
    value, lowest, heat, count, seed = stage
    np.random.seed(seed)
    changed = np.empty(64, np.int64)
    old = np.empty(64, np.int64)
    for _ in range(count):
        number = _propose(arrays, place, changed, old)
        fits = number > 0
        for i in range(number):  # the proposal is carried out again, with its effects
            target = place[changed[i]]
            fits &= arrays.unit_cost[changed[i], target] < np.inf
            place[changed[i]], old[i] = old[i], target
        if not fits:
            continue
        for i in range(number):
            source = place[changed[i]]
            move(arrays, place, load, used, readers, changed[i], old[i])
            old[i] = source
        for i in range(number):
            fits &= used[place[changed[i]]] <= arrays.limit[place[changed[i]]]
        after = _load_value(arrays, load, busiest)
        if fits and (after <= value or np.random.random() < np.exp((value - after) / heat)):
            value = after
            if value < lowest - 1e-9:
                lowest = value
                copy_row(best, place)
            continue
        for i in range(number - 1, -1, -1):
            move(arrays, place, load, used, readers, changed[i], old[i])
    return value, lowest


@loop_part
def _propose(arrays: Arrays, place: Array, changed: Array, old: Array) -> int:
    """Changes some places; notes which units and where they were; returns how many."""
    unit = np.random.randint(len(place))
    draw = np.random.random()
    target = place[_neighbour(arrays, unit)]
    if draw < 0.1:
        target = np.random.randint(len(arrays.slots))
    if target == place[unit]:
        return 0
    changed[0], old[0] = unit, place[unit]
    if 0.1 <= draw < 0.25:  # two units change places
        for _ in range(8):
            other = np.random.randint(len(place))
            if place[other] == target:
                changed[1], old[1] = other, target
                place[unit], place[other] = target, old[0]
                return 2
    place[unit] = target
    number = 1
    if draw > 0.6:  # neighbours of the same device come along
        size = 1 + np.random.randint(len(changed) - 1)
        for _ in range(3 * size):
            other = _neighbour(arrays, changed[np.random.randint(number)])
            if place[other] == old[0] and number < size:
                changed[number], old[number] = other, old[0]
                place[other] = target
                number += 1
    return number


@loop_part
def _neighbour(arrays: Arrays, unit: int) -> int:
    """Unit of a random task that reads from or is read by a random task of the unit."""
    first, last = arrays.unit_start[unit], arrays.unit_start[unit + 1]
    task = arrays.unit_tasks[first + np.random.randint(last - first)]
    above = arrays.pred_start[task + 1] - arrays.pred_start[task]
    below = arrays.succ_start[task + 1] - arrays.succ_start[task]
    if above + below == 0:
        return unit
    index = np.random.randint(above + below)
    if index < above:
        return int(arrays.unit_of[arrays.pred[arrays.pred_start[task] + index]])
    return int(arrays.unit_of[arrays.succ[arrays.succ_start[task] + index - above]])
