"""List scheduling: tasks by rank, each to the device that ends it first; a baseline and a start.

HEFT (Topcuoglu et al. 2002) ranks by the longest way to the end in mean times. ONE Runtime's
HEScheduler ranks by mean time times its deviation between devices instead, so that what matters
most to place well is placed first; the moves that a placement needs are booked on the device that
reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita_hetero.planner.arrays.problem_arrays import Array, Arrays


def list_schedules(arrays: Arrays) -> Iterator[tuple[str, Array | None]]:
    """Placements by name; None if a task found no room on any device."""
    cost = np.where(np.isfinite(arrays.task_cost), arrays.task_cost, np.nan)
    mean = np.nanmean(cost, axis=1)
    deviation = np.nanstd(cost, axis=1)
    hop = np.zeros(len(mean))
    made = arrays.producer >= 0
    np.maximum.at(hop, arrays.producer[made], (arrays.up + arrays.down).mean(axis=1)[made])
    yield "HEFT", earliest_finish(arrays, upward_rank(arrays, mean, hop))
    rank = upward_rank(arrays, mean * deviation, np.zeros_like(hop))
    yield "HEScheduler", earliest_finish(arrays, rank)


def upward_rank(arrays: Arrays, weight: Array, hop: Array) -> Array:
    """The heaviest way from each task to the end, moves between tasks included."""
    rank = weight.copy()
    for task in range(len(rank) - 1, -1, -1):
        succs = arrays.succ[arrays.succ_start[task] : arrays.succ_start[task + 1]]
        if len(succs):
            rank[task] += hop[task] + rank[succs].max()
    return rank


def earliest_finish(arrays: Arrays, rank: Array) -> Array | None:
    """Places tasks from the highest rank to the lowest where each ends first.

    Tasks of a unit go where its first one went. A device's time after its last task counts; gaps
    before it are not filled.

    Returns:
        Device of each unit; None if a unit fits no device.
    """
    devices = range(len(arrays.slots))
    place = np.full(arrays.units, -1, np.int64)
    room = arrays.limit.copy()
    free = [np.zeros(max(1, int(slots))) for slots in arrays.slots]
    end = np.zeros(len(rank))
    there: list[dict[int, float]] = [{} for _ in arrays.producer]  # device to arrival of a value
    for task in np.lexsort((np.arange(len(rank)), -rank)):
        unit = arrays.unit_of[task]
        best = (np.inf, -1)
        for device in devices:
            if place[unit] not in (-1, device) or not np.isfinite(arrays.unit_cost[unit, device]):
                continue
            if place[unit] < 0 and arrays.unit_weight[unit] > room[device]:
                continue
            ready, moved = _arrival(arrays, place, end, there, int(task), device)
            start = ready if arrays.slots[device] == 0 else max(ready, free[device].min())
            best = min(best, (start + moved + arrays.task_cost[task, device], device))
        end[task], device = best
        if device < 0:
            return None
        if place[unit] < 0:
            place[unit] = device
            room[device] -= arrays.unit_weight[unit]
        free[device][free[device].argmin()] = end[task]
        for value in arrays.reads[arrays.read_start[task] : arrays.read_start[task + 1]]:
            there[value].setdefault(device, end[task])
    return place


def _arrival(
    arrays: Arrays,
    place: Array,
    end: Array,
    there: list[dict[int, float]],
    task: int,
    device: int,
) -> tuple[float, float]:
    """When all that a task reads exists, and the time to move to its device what is not there.

    Args:
        arrays: The problem.
        place: Device of each unit; those of the tasks before this one are known.
        end: When each of these ends, in microseconds.
        there: Of each value, when it came to the devices that have it.
        task: The task.
        device: Where it would run.
    """
    ready = moved = 0.0
    for value in arrays.reads[arrays.read_start[task] : arrays.read_start[task + 1]]:
        producer = arrays.producer[value]
        if device in there[value]:
            ready = max(ready, there[value][device])
            continue
        if producer < 0:
            moved += arrays.up[value, device]
            continue
        source = place[arrays.unit_of[producer]]
        ready = max(ready, end[producer])
        if source != device:
            if arrays.is_direct[source, device]:
                moved += arrays.direct[value, source, device]
            else:
                moved += arrays.down[value, source] + arrays.up[value, device]
    return ready, moved
