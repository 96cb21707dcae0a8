"""Loads of the devices under a placement, kept up to date while single units move.

The sum of the loads is the LATENCY of a sequential run and the largest one the THROUGHPUT value,
launches apart: those depend on how the whole model is cut.
"""

from __future__ import annotations

import numpy as np

from partita_hetero.planner.arrays.compiled_loops import jit, loop_part
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays


@jit
def device_loads(arrays: Arrays, place: Array) -> tuple[Array, Array, Array]:
    """Everything that :func:`move` keeps up to date.

    Returns:
        Load of each device in microseconds; bytes that each one keeps; how many tasks on each
        device read each value.
    """
    devices = len(arrays.slots)
    load = np.zeros(devices)
    used = np.zeros(devices)
    readers = np.zeros((len(arrays.producer), devices), np.int64)
    for unit in range(len(place)):
        load[place[unit]] += arrays.unit_cost[unit, place[unit]] + arrays.penalty[unit, place[unit]]
        used[place[unit]] += arrays.unit_weight[unit]
    for value in range(len(arrays.producer)):
        for i in range(arrays.reader_start[value], arrays.reader_start[value + 1]):
            readers[value, place[arrays.unit_of[arrays.reader[i]]]] += 1
        add_moves(arrays, place, readers, value, load, 1.0)
    return load, used, readers


@loop_part
def add_moves(
    arrays: Arrays, place: Array, readers: Array, value: int, load: Array, sign: float
) -> None:
    """Adds what the moves of one value cost to the loads, or takes it away.

    Args:
        arrays: The problem.
        place: By unit its device.
        readers: By value and device how many tasks there read it.
        value: The value.
        load: By device its time in microseconds; changed.
        sign: 1 to add, -1 to take away.
    """
    producer = arrays.producer[value]
    source = -1
    if producer >= 0:
        source = place[arrays.unit_of[producer]]
    leaves = arrays.output[value]
    for target in range(len(load)):
        if readers[value, target] == 0 or target == source:
            continue
        if source >= 0 and arrays.is_direct[source, target]:
            load[target] += sign * arrays.direct[value, source, target]
        else:
            load[target] += sign * arrays.up[value, target]
            leaves = True
    if leaves and source >= 0:
        load[source] += sign * arrays.down[value, source]


@jit
def move(
    arrays: Arrays, place: Array, load: Array, used: Array, readers: Array, unit: int, target: int
) -> None:
    """Moves a unit to a device, and updates what follows from the placement.

    Args:
        arrays: The problem.
        place: By unit its device; changed.
        load: By device its time in microseconds; changed.
        used: By device the bytes that units keep there; changed.
        readers: By value and device how many tasks there read it; changed.
        unit: The unit.
        target: Where it goes.
    """
    source = place[unit]
    first, last = arrays.value_start[unit], arrays.value_start[unit + 1]
    for i in range(first, last):
        add_moves(arrays, place, readers, arrays.unit_values[i], load, -1.0)
    for i in range(arrays.unit_start[unit], arrays.unit_start[unit + 1]):
        task = arrays.unit_tasks[i]
        for j in range(arrays.read_start[task], arrays.read_start[task + 1]):
            readers[arrays.reads[j], source] -= 1
            readers[arrays.reads[j], target] += 1
    place[unit] = target
    load[source] -= arrays.unit_cost[unit, source] + arrays.penalty[unit, source]
    load[target] += arrays.unit_cost[unit, target] + arrays.penalty[unit, target]
    used[source] -= arrays.unit_weight[unit]
    used[target] += arrays.unit_weight[unit]
    for i in range(first, last):
        add_moves(arrays, place, readers, arrays.unit_values[i], load, 1.0)
