"""Dynamic programming over intervals: each device gets one stretch of a fixed order of the blocks.

The state is the end of the stretch and the devices used. On a chain the result is the optimum over
contiguous placements; elsewhere it is a good start.
"""

from __future__ import annotations

import itertools

import numpy as np

from partita_hetero.planner.arrays.blocks import Blocks
from partita_hetero.planner.arrays.compiled_loops import jit
from partita_hetero.planner.arrays.device_kinds import Kind
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays

MAX_BLOCKS = 3000
"""The tables take the square of the number of blocks; beyond this, other methods start."""


def best_stretches(
    arrays: Arrays, blocks: Blocks, order: Array, alike: list[Kind], busiest: bool
) -> Array | None:
    """Cuts an order of the blocks into one stretch for each device, or fewer.

    Args:
        arrays: The problem.
        blocks: What is never torn.
        order: The order to be cut.
        alike: Kinds of devices; a reusable one may get several stretches.
        busiest: Whether to minimize the largest load instead of the sum of loads.

    Returns:
        Device of each unit; None if memory allows no such cut.
    """
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    at_task = position[blocks.of_task]
    costs = []
    for kind in alike:
        device = kind.devices[0]
        table = stretch_costs(arrays, order, blocks.cost, blocks.weight, at_task, device)
        costs.append(table / max(1, arrays.slots[device]) if busiest else table)
    step = _steps(alike)[1]
    value, back = _cut(np.stack(costs), step, busiest)
    state = int(np.argmin(value[:, -1]))
    if not np.isfinite(value[state, -1]):
        return None
    place = np.empty(len(order), np.int64)
    end = len(order)
    used = [0] * len(alike)
    while end > 0:
        start, which, state = back[state, end]
        place[order[start:end]] = alike[which].devices[used[which]]
        used[which] += 0 if alike[which].reusable else 1
        end = start
    return place[blocks.of_unit]


def least_sum(costs: list[Array], alike: list[Kind]) -> float:
    """The least sum of stretches of an order, given a table of their costs for each kind."""
    value, _ = _cut(np.stack(costs), _steps(alike)[1], False)
    return float(value[:, -1].min())


def _steps(alike: list[Kind]) -> tuple[list[tuple[int, ...]], Array]:
    """Numbers of devices used, by kind, and which comes after one more device of each kind."""
    counts = [1 if kind.reusable else len(kind.devices) + 1 for kind in alike]
    states = list(itertools.product(*(range(count) for count in counts)))
    number = {state: index for index, state in enumerate(states)}
    step = np.full((len(states), len(alike)), -1, np.int64)
    for index, state in enumerate(states):
        for which, kind in enumerate(alike):
            after = list(state)
            after[which] += 0 if kind.reusable else 1
            step[index, which] = number.get(tuple(after), -1)
    return states, step


@jit
def stretch_costs(
    arrays: Arrays, order: Array, cost: Array, weight: Array, at_task: Array, device: int
) -> Array:
    """Load of a device for each stretch of an order, from start to end (exclusive).

    Values come and go through the host. Infinite where the stretch does not fit the memory.

    Args:
        arrays: The problem.
        order: All blocks, in an order in which they can run.
        cost: Microseconds [blocks, devices].
        weight: Bytes of each block.
        at_task: Place of each task's block in the order.
        device: Number of the device.

    Returns:
        Microseconds [places, places + 1], by a stretch's first place and the one behind its last.
    """
    count = len(order)
    values = len(arrays.producer)
    last = np.full(values, -1, np.int64)
    first_of = np.full(values, -1, np.int64)
    for value in range(values):
        if arrays.producer[value] >= 0:
            first_of[value] = at_task[arrays.producer[value]]
        for i in range(arrays.reader_start[value], arrays.reader_start[value + 1]):
            last[value] = max(last[value], at_task[arrays.reader[i]])
        if arrays.output[value]:
            last[value] = count
    reads, read_start = values_at(arrays.reads, arrays.read_start, at_task, count)
    writes, write_start = values_at(arrays.writes, arrays.write_start, at_task, count)
    table = np.full((count, count + 1), np.inf)
    seen = np.full(values, -1, np.int64)
    for start in range(count):
        load = arrays.launch[device]
        used = 0.0
        for end in range(start + 1, count + 1):
            block = order[end - 1]
            load += cost[block, device]
            used += weight[block]
            if used > arrays.limit[device] or load == np.inf:
                break
            for i in range(read_start[end - 1], read_start[end]):
                value = reads[i]
                if first_of[value] < start:
                    if seen[value] != start:
                        seen[value] = start
                        load += arrays.up[value, device]
                elif last[value] == end - 1 and first_of[value] < end - 1 and seen[value] != start:
                    seen[value] = start
                    load -= arrays.down[value, device]
            for i in range(write_start[end - 1], write_start[end]):
                if last[writes[i]] > end - 1:
                    load += arrays.down[writes[i], device]
            table[start, end] = load
    return table


@jit
def values_at(values: Array, start: Array, at_task: Array, count: int) -> tuple[Array, Array]:
    """Values that the tasks of each position read or write, and where they start.

    Args:
        values: Values of each task, from ``start``.
        start: Where each task's values start.
        at_task: Position of each task, or -1.
        count: Number of positions.
    """
    starts = np.zeros(count + 1, np.int64)
    for task in range(len(at_task)):
        if at_task[task] >= 0:
            starts[at_task[task] + 1] += start[task + 1] - start[task]
    for position in range(count):
        starts[position + 1] += starts[position]
    following = starts.copy()
    found = np.empty(starts[count], np.int64)
    for task in range(len(at_task)):
        if at_task[task] >= 0:
            for i in range(start[task], start[task + 1]):
                found[following[at_task[task]]] = values[i]
                following[at_task[task]] += 1
    return found, starts


@jit
def _cut(costs: Array, step: Array, busiest: bool) -> tuple[Array, Array]:
    """The table of the dynamic programme: value and way back for each state and end."""
    states, which = step.shape
    count = costs.shape[1]
    value = np.full((states, count + 1), np.inf)
    value[0, 0] = 0.0
    back = np.zeros((states, count + 1, 3), np.int64)
    for start in range(count):
        for state in range(states):
            now = value[state, start]
            if now == np.inf:
                continue
            for kind in range(which):
                target = step[state, kind]
                if target < 0:
                    continue
                for end in range(start + 1, count + 1):
                    cost = costs[kind, start, end]
                    if cost == np.inf:
                        break
                    total = max(now, cost) if busiest else now + cost
                    if total < value[target, end]:
                        value[target, end] = total
                        back[target, end, 0] = start
                        back[target, end, 1] = kind
                        back[target, end, 2] = state
    return value, back
