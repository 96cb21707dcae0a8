"""A lower bound on PARALLEL latency of contiguous placements, where memory limits force a split.

Take any path through the tasks. Each device has one stretch of it, and the stretches run one after
another. A stretch takes at least what its blocks compute, what they hand to and get from other
stretches, and for each neighbour off the path either its compute and bytes on the same device or
the moves of its values; bytes being divisible, the choice is a fractional knapsack. Dynamic
programming over the stretches (:mod:`partita_hetero.planner.bounds.intervals`) gives the least
total.
"""

from __future__ import annotations

import numpy as np

from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.arrays.blocks import Blocks
from partita_hetero.planner.arrays.compiled_loops import jit, loop_part
from partita_hetero.planner.arrays.device_kinds import Kind
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays
from partita_hetero.planner.bounds.intervals import least_sum, values_at


def chain_bound(arrays: Arrays, blocks: Blocks, alike: list[Kind], seconds: float) -> float:
    """The best bound over some paths, until the time is over; values must pass by the host.

    Args:
        arrays: The problem.
        blocks: What must stay together, if each device gets one subgraph.
        alike: The devices, those that compute alike together.
        seconds: After which no further path is tried.

    Returns:
        Microseconds; 0 if the time did not suffice for a path.
    """
    end = search_clock.seconds() + seconds
    quick = np.where(np.isfinite(arrays.task_cost), arrays.task_cost, np.inf).min(axis=1)
    heavy = arrays.unit_weight[arrays.unit_of] / np.diff(arrays.unit_start)[arrays.unit_of]
    heavy = heavy / max(float(heavy.sum()), 1e-12) * float(quick.sum())
    hop = np.zeros(len(quick))
    made = arrays.producer >= 0
    np.maximum.at(hop, arrays.producer[made], (arrays.up + arrays.down).max(axis=1)[made])
    weights = [quick, quick + hop, quick + 0.1 * hop, quick + heavy, quick + 10 * heavy]
    best, seen = 0.0, set()
    for weight in weights:
        path = longest_path(arrays.pred, arrays.pred_start, weight)
        if path.tobytes() not in seen and search_clock.seconds() < end:
            seen.add(path.tobytes())
            best = max(best, _bound_of_path(arrays, blocks, alike, path))
    return best


@jit
def longest_path(pred: Array, pred_start: Array, weight: Array) -> Array:
    """Tasks of a path with the largest sum of weights, in order."""
    count = len(weight)
    length = weight.copy()
    before = np.full(count, -1, np.int64)
    for task in range(count):
        for i in range(pred_start[task], pred_start[task + 1]):
            if length[pred[i]] + weight[task] > length[task]:
                length[task] = length[pred[i]] + weight[task]
                before[task] = pred[i]
    path = np.empty(count, np.int64)
    task = int(np.argmax(length))
    number = 0
    while task >= 0:
        path[number] = task
        number += 1
        task = int(before[task])
    return path[:number][::-1].copy()


def _bound_of_path(arrays: Arrays, blocks: Blocks, alike: list[Kind], path: Array) -> float:
    along = blocks.of_task[path]
    order = along[np.concatenate([[True], along[1:] != along[:-1]])]
    position = np.full(blocks.count, -1, np.int64)
    position[order] = np.arange(len(order))
    at_task = position[blocks.of_task]
    by_task = np.zeros((len(order), len(arrays.slots)))
    np.add.at(by_task, position[along], arrays.task_cost[path])
    tables = []
    for kind in alike:
        device = kind.devices[0]
        if kind.reusable:
            tables.append(_sums(by_task[:, device]))
        else:
            tables.append(
                stretch_bounds(
                    arrays, order, blocks.cost, blocks.weight, blocks.of_task, at_task, device
                )
            )
    return least_sum(tables, alike)


def _sums(cost: Array) -> Array:
    """Sum of each stretch."""
    total = np.concatenate([[0.0], np.cumsum(cost)])
    table = total[None, :] - total[:-1, None]
    return np.where(table > 0, table, 0.0)


@jit
def stretch_bounds(
    arrays: Arrays,
    order: Array,
    cost: Array,
    weight: Array,
    block_of: Array,
    at_task: Array,
    device: int,
) -> Array:
    """A lower bound on the time of a device for each stretch of a path, start to end.

    Args:
        arrays: The problem.
        order: Blocks of the path, from its start.
        cost: Microseconds [blocks, devices].
        weight: Bytes of each block.
        block_of: Block of each task.
        at_task: Place of each task's block on the path; -1 for those beside it.
        device: Number of the device.

    Returns:
        Microseconds [places, places + 1], by a stretch's first place and the one behind its last.
    """
    count = len(order)
    limit = arrays.limit[device]
    sides = (
        values_at(arrays.reads, arrays.read_start, at_task, count),
        values_at(arrays.writes, arrays.write_start, at_task, count),
    )
    table = np.full((count, count + 1), np.inf)
    seen = np.full(len(arrays.producer), -1, np.int64)
    save = np.zeros(len(weight))
    listed = np.empty(len(weight), np.int64)
    stamp = 0
    for start in range(count):
        compute = arrays.launch[device]
        used = 0.0
        for end in range(start + 1, count + 1):
            compute += cost[order[end - 1], device]
            used += weight[order[end - 1]]
            if used > limit or compute == np.inf:
                break
            stamp += 1
            moves = 0.0
            number = 0
            for values, value_start in sides:
                for i in range(value_start[start], value_start[end]):
                    value = values[i]
                    if seen[value] == stamp:
                        continue
                    seen[value] = stamp
                    time, block = _forced(
                        arrays, weight, block_of, at_task, value, start, end, device
                    )
                    moves += time
                    if block >= 0 and time > 0:
                        if save[block] == 0:
                            listed[number] = block
                            number += 1
                        save[block] += time
            table[start, end] = (
                compute
                + moves
                - _knapsack(listed[:number], save, cost[:, device], weight, limit - used)
            )
            for i in range(number):
                save[listed[i]] = 0.0
    return table


@loop_part
def _forced(
    arrays: Arrays,
    weight: Array,
    block_of: Array,
    at_task: Array,
    value: int,
    start: int,
    end: int,
    device: int,
) -> tuple[float, int]:
    """Time of moving a value for a stretch, and a block off the path that could save it, or -1.

    Args:
        arrays: The problem.
        weight: Of each block: what the device would have to hold besides.
        block_of: The block of each task.
        at_task: Place of each task along the path; negative for one off it.
        value: A value that the stretch reads or writes.
        start: Place of the stretch's first task.
        end: The place behind its last one.
        device: Where the stretch runs.
    """
    producer = arrays.producer[value]
    first, last = arrays.reader_start[value], arrays.reader_start[value + 1]
    if producer >= 0 and start <= at_task[producer] < end:
        if arrays.output[value]:
            return arrays.down[value, device], -1
        saver = -1
        for i in range(first, last):
            reader = arrays.reader[i]
            if at_task[reader] >= end:
                return arrays.down[value, device], -1
            if at_task[reader] < 0:
                block = block_of[reader]
                if saver < 0 or weight[block] > weight[saver]:
                    saver = block
        return (arrays.down[value, device] if saver >= 0 else 0.0), saver
    for i in range(first, last):
        if start <= at_task[arrays.reader[i]] < end:
            saver = -1
            if producer >= 0 and at_task[producer] < 0:
                saver = block_of[producer]
            return arrays.up[value, device], saver
    return 0.0, -1


@loop_part
def _knapsack(listed: Array, save: Array, cost: Array, weight: Array, room: float) -> float:
    """The most that taking blocks, or parts of them, can save."""
    rate = np.empty(len(listed))
    saved = 0.0
    for i in range(len(listed)):
        gain = save[listed[i]] - cost[listed[i]]
        rate[i] = 0.0
        if gain > 0:
            if weight[listed[i]] == 0:
                saved += gain
            else:
                rate[i] = gain / weight[listed[i]]
    for i in np.argsort(-rate):
        if rate[i] <= 0 or room <= 0:
            break
        part = min(room, weight[listed[i]])
        saved += rate[i] * part
        room -= part
    return saved
