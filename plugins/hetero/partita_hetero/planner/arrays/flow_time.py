"""The simulator's PARALLEL latency as compiled loops, for search.

It must equal :func:`partita_hetero.planner.simulation.simulate.simulate`; tests compare the two.
"""

from __future__ import annotations

import heapq

import numpy as np

from partita_hetero.planner.arrays.compiled_loops import jit, loop_part
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays


@jit
def parallel_us(arrays: Arrays, device: Array, early: bool, contiguous: bool) -> float:
    """Latency when independent submodels run at the same time.

    Args:
        arrays: The problem.
        device: Device of each task.
        early: Whether submodels are cut where values cross; otherwise they are only where the
            tasks of a device cannot run without a break.
        contiguous: Whether such placements are ruled out.

    Returns:
        Microseconds, without penalties; infinite for a placement that is ruled out.
    """
    whole = np.inf
    if contiguous or not early:
        whole = _latency(arrays, device, _owners_late(arrays, device))
    if contiguous and whole == np.inf:
        return np.inf
    if not early and whole < np.inf:
        return whole
    return _latency(arrays, device, _owners_early(arrays, device))


@loop_part
def _latency(arrays: Arrays, device: Array, owner: Array) -> float:
    """When the last submodel ends; infinite if submodels wait for each other."""
    count = 0
    for op in range(len(device)):
        count = max(count, owner[op] + 1)
    start, ops = _members(owner, count)
    missing = np.zeros(count, np.int64)
    for op in range(len(device)):
        for i in range(arrays.pred_start[op], arrays.pred_start[op + 1]):
            if owner[arrays.pred[i]] != owner[op]:
                missing[owner[op]] += 1
    ready = np.zeros(count)
    held = np.zeros(arrays.up.shape, np.bool_)
    most = 1
    for slots in arrays.slots:
        most = max(most, slots)
    free = np.zeros((len(arrays.slots), most))
    waiting = [(0.0, 0, 0)]
    waiting.pop()
    todo = 0
    for subgraph in range(count):
        if start[subgraph] < start[subgraph + 1]:
            todo += 1
            if missing[subgraph] == 0:
                waiting.append((0.0, ops[start[subgraph]], subgraph))
    heapq.heapify(waiting)
    latest = 0.0
    while len(waiting) > 0:
        now, _, subgraph = heapq.heappop(waiting)
        todo -= 1
        place = device[ops[start[subgraph]]]
        slot = 0
        if arrays.slots[place] > 0:
            for i in range(arrays.slots[place]):
                if free[place, i] < free[place, slot]:
                    slot = i
            now = max(now, free[place, slot])
        now += arrays.launch[place]
        for i in range(start[subgraph], start[subgraph + 1]):
            now += arrays.task_cost[ops[i], place] + _moves(arrays, device, held, ops[i], place)
        free[place, slot] = now
        latest = max(latest, now)
        for i in range(start[subgraph], start[subgraph + 1]):
            for j in range(arrays.succ_start[ops[i]], arrays.succ_start[ops[i] + 1]):
                follower = owner[arrays.succ[j]]
                if follower != subgraph:
                    missing[follower] -= 1
                    ready[follower] = max(ready[follower], now)
                    if missing[follower] == 0:
                        entry = (ready[follower], ops[start[follower]], follower)
                        heapq.heappush(waiting, entry)
    return latest if todo == 0 else np.inf


@loop_part
def _moves(arrays: Arrays, device: Array, held: Array, op: int, place: int) -> float:
    """Time to move in what a task reads and to move out what it writes.

    Args:
        arrays: The problem.
        device: Device of each task.
        held: Which devices have which values by now; those moved in are added.
        op: The task.
        place: Its device.
    """
    if arrays.on_host[place]:
        return 0.0
    total = 0.0
    for i in range(arrays.read_start[op], arrays.read_start[op + 1]):
        value = arrays.reads[i]
        source = arrays.producer[value]
        if (source >= 0 and device[source] == place) or held[value, place]:
            continue
        held[value, place] = True
        if source >= 0 and arrays.is_direct[device[source], place]:
            total += arrays.direct[value, device[source], place]
        else:
            total += arrays.up[value, place]
    for i in range(arrays.write_start[op], arrays.write_start[op + 1]):
        value = arrays.writes[i]
        leaves = arrays.output[value]
        for j in range(arrays.reader_start[value], arrays.reader_start[value + 1]):
            target = device[arrays.reader[j]]
            if target != place and not arrays.is_direct[place, target]:
                leaves = True
        if leaves:
            total += arrays.down[value, place]
    return total


@loop_part
def _owners_late(arrays: Arrays, device: Array) -> Array:
    """One submodel for each device, or for each task on devices that run tasks by themselves."""
    owner = np.empty(len(device), np.int64)
    for op in range(len(device)):
        owner[op] = device[op]
        if arrays.per_task[device[op]]:
            owner[op] = len(arrays.slots) + op
    return owner


@loop_part
def _owners_early(arrays: Arrays, device: Array) -> Array:
    """Submodels that begin where a value comes in and end where one goes out."""
    count = len(device)
    imports = np.zeros(count, np.int64)
    exports = np.zeros(count, np.int64)
    owner = np.empty(count, np.int64)
    for op in range(count):
        owner[op] = op
        for i in range(arrays.pred_start[op], arrays.pred_start[op + 1]):
            if device[arrays.pred[i]] != device[op]:
                imports[op] = 1
                exports[arrays.pred[i]] = 1
    level = np.zeros(count, np.int64)
    for op in range(count):
        for i in range(arrays.pred_start[op], arrays.pred_start[op + 1]):
            pred = arrays.pred[i]
            level[op] = max(level[op], level[pred] + (imports[op] | exports[pred]))
        for i in range(arrays.pred_start[op], arrays.pred_start[op + 1]):
            if level[arrays.pred[i]] == level[op]:
                first = _root(owner, op)
                second = _root(owner, arrays.pred[i])
                owner[max(first, second)] = min(first, second)
    for op in range(count):
        owner[op] = _root(owner, op)
    first_equal = _first_equals(arrays, device, owner)
    for op in range(count):
        owner[op] = op if arrays.per_task[device[op]] else first_equal[owner[op]]
    return owner


@loop_part
def _first_equals(arrays: Arrays, device: Array, owner: Array) -> Array:
    """For each submodel the first one of its device between the same submodels, often itself.

    Sets of neighbours are compared by sums of mixed numbers.
    """
    count = len(owner)
    start, ops = _members(owner, count)
    before = np.zeros(count, np.int64)
    after = np.zeros(count, np.int64)
    seen = np.zeros(count, np.int64)
    for subgraph in range(count):
        for i in range(start[subgraph], start[subgraph + 1]):
            for j in range(arrays.pred_start[ops[i]], arrays.pred_start[ops[i] + 1]):
                source = owner[arrays.pred[j]]
                if source != subgraph and seen[source] != subgraph + 1:
                    seen[source] = subgraph + 1
                    before[subgraph] += _mixed(source)
                    after[source] += _mixed(subgraph)
    key = np.empty(count, np.int64)
    first_equal = np.empty(count, np.int64)
    room = 2
    while room < 2 * count:
        room *= 2
    first = np.zeros(room, np.int64)  # one more than the first of a key, at its place or behind
    for subgraph in range(count):
        key[subgraph] = before[subgraph] * 3 + after[subgraph] + _mixed(-2 - device[subgraph])
        place = key[subgraph] & (room - 1)
        while first[place] > 0 and key[first[place] - 1] != key[subgraph]:
            place = (place + 1) % room
        if first[place] == 0:
            first[place] = subgraph + 1
        alone = before[subgraph] == 0 and after[subgraph] == 0
        first_equal[subgraph] = subgraph if alone else first[place] - 1
    return first_equal


@loop_part
def _mixed(number: int) -> np.int64:
    """A number whose sums tell sets apart (a step of splitmix64)."""
    mixed = np.uint64(number + 1) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(mixed ^ (mixed >> np.uint64(27)))


@loop_part
def _root(owner: Array, op: int) -> int:
    while owner[op] != op:
        owner[op] = owner[owner[op]]
        op = owner[op]
    return op


@loop_part
def _members(owner: Array, count: int) -> tuple[Array, Array]:
    """Tasks of each submodel: where they start, and all of them."""
    start = np.zeros(count + 1, np.int64)
    for op in range(len(owner)):
        start[owner[op] + 1] += 1
    for subgraph in range(count):
        start[subgraph + 1] += start[subgraph]
    following = start[:-1].copy()
    ops = np.empty(len(owner), np.int64)
    for op in range(len(owner)):
        ops[following[owner[op]]] = op
        following[owner[op]] += 1
    return start, ops
