"""A placement problem as flat arrays, the form in which the methods search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST
from partita_hetero.planner.simulation.feasible import allowed_devices

Array = np.ndarray[Any, Any]


class Arrays(NamedTuple):
    """The problem in numbers. A unit is a group of tasks that share a device.

    Lists of lists are stored as a flat array with an array of starts.

    Attributes:
        unit_of: Unit of each task.
        unit_tasks: Tasks of the units, from ``unit_start``.
        unit_start: Where each unit's tasks start.
        unit_values: Values that each unit's tasks read or write, from ``value_start``.
        value_start: Where each unit's values start.
        unit_cost: Cost of each unit on each device; infinite where it must not go.
        penalty: What soft pins add, by unit and device.
        unit_weight: Bytes that each unit keeps.
        task_cost: Cost of each task on each device; infinite where it must not go.
        pred: Tasks that each task reads from, from ``pred_start``.
        pred_start: Where each task's predecessors start.
        succ: Tasks that read from each task, from ``succ_start``.
        succ_start: Where each task's successors start.
        reads: Values that each task reads, from ``read_start``.
        read_start: Where each task's values start.
        writes: Values that each task writes, from ``write_start``.
        write_start: Where each task's values start.
        producer: Task that writes each value, or -1 for an input of the model.
        reader: Tasks that read each value, from ``reader_start``.
        reader_start: Where each value's readers start.
        output: Whether each value is an output of the model.
        up: Time of moving each value from the host to each device.
        down: Time of moving each value from each device to the host.
        direct: Time of moving each value along each direct link: value, source, target.
        is_direct: Whether there is a direct link: source, target.
        on_host: Whether each device works in host memory.
        limit: Memory of each device in bytes, or infinite.
        launch: Launch cost of each device.
        slots: How much each device runs at once; 0 for no limit.
        per_task: Whether each device runs tasks by themselves.
    """

    unit_of: Array
    unit_tasks: Array
    unit_start: Array
    unit_values: Array
    value_start: Array
    unit_cost: Array
    penalty: Array
    unit_weight: Array
    task_cost: Array
    pred: Array
    pred_start: Array
    succ: Array
    succ_start: Array
    reads: Array
    read_start: Array
    writes: Array
    write_start: Array
    producer: Array
    reader: Array
    reader_start: Array
    output: Array
    up: Array
    down: Array
    direct: Array
    is_direct: Array
    on_host: Array
    limit: Array
    launch: Array
    slots: Array
    per_task: Array

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.unit_start) - 1

    def tasks(self, places: Array) -> tuple[int, ...]:
        """Device of each task from the device of each unit."""
        return tuple(int(device) for device in places[self.unit_of])

    def places(self, assignment: Sequence[int]) -> Array:
        """Device of each unit from the device of each task."""
        return np.asarray(assignment, np.int64)[self.unit_tasks[self.unit_start[:-1]]]


def flatten(problem: Problem) -> Arrays:
    """Reads a problem into arrays.

    Raises:
        InfeasiblePlanError: A unit has no device, see :func:`allowed_devices`.
    """
    groups, tasks, values, devices = problem.groups, problem.tasks, problem.values, problem.devices
    unit_of = np.zeros(len(tasks), np.int64)
    for unit, members in enumerate(groups):
        unit_of[members] = unit
    task_cost = _task_costs(problem, unit_of)
    unit_cost = np.zeros((len(groups), len(devices)))
    np.add.at(unit_cost, unit_of, task_cost)
    weight = np.zeros(len(groups))
    np.add.at(weight, unit_of, np.array([task.weight_bytes for task in tasks], float))
    reads, writes = _values_of_tasks(problem)
    up, down, direct, is_direct = _moves(problem)
    unit_tasks, unit_start = pack(groups)
    unit_values, value_start = pack(
        [sorted({v for task in group for v in reads[task] + writes[task]}) for group in groups]
    )
    pred, pred_start = pack(problem.preds)
    succ, succ_start = pack(problem.succs)
    read, read_start = pack(reads)
    write, write_start = pack(writes)
    reader, reader_start = pack([value.consumers for value in values])
    limits = [device.memory_bytes for device in devices]
    return Arrays(
        unit_of=unit_of,
        unit_tasks=unit_tasks,
        unit_start=unit_start,
        unit_values=unit_values,
        value_start=value_start,
        unit_cost=unit_cost,
        penalty=_penalties(problem, unit_of),
        unit_weight=weight,
        task_cost=task_cost,
        pred=pred,
        pred_start=pred_start,
        succ=succ,
        succ_start=succ_start,
        reads=read,
        read_start=read_start,
        writes=write,
        write_start=write_start,
        producer=np.array([-1 if v.producer is None else v.producer for v in values], np.int64),
        reader=reader,
        reader_start=reader_start,
        output=np.array([value.is_output for value in values], bool),
        up=up,
        down=down,
        direct=direct,
        is_direct=is_direct,
        on_host=np.array([device.host_memory for device in devices]),
        limit=np.array([np.inf if limit is None else limit for limit in limits], float),
        launch=np.array([device.launch_us for device in devices], float),
        slots=np.array([device.slots or 0 for device in devices], np.int64),
        per_task=np.array([device.per_task for device in devices]),
    )


def _task_costs(problem: Problem, unit_of: Array) -> Array:
    """Microseconds [tasks, devices]; infinite where a task's unit must not go."""
    costs = np.array(
        [[np.inf if cost.us is None else cost.us for cost in task.costs] for task in problem.tasks],
        float,
    ).reshape(len(problem.tasks), len(problem.devices))
    allowed = np.zeros((len(problem.groups), len(problem.devices)), bool)
    for unit, choices in enumerate(allowed_devices(problem)):
        allowed[unit, choices] = True
    costs[~allowed[unit_of]] = np.inf
    return costs


def _penalties(problem: Problem, unit_of: Array) -> Array:
    """What soft pins add, in microseconds [units, devices]."""
    penalty = np.zeros((len(problem.groups), len(problem.devices)))
    for pin in problem.pins:
        if not pin.hard:
            penalty[unit_of[pin.task], :] += pin.penalty_us
            penalty[unit_of[pin.task], pin.device] -= pin.penalty_us
    return penalty


def _values_of_tasks(problem: Problem) -> tuple[list[list[int]], list[list[int]]]:
    """Values that each task reads, and those that it writes."""
    reads: list[list[int]] = [[] for _ in problem.tasks]
    writes: list[list[int]] = [[] for _ in problem.tasks]
    for index, value in enumerate(problem.values):
        for consumer in value.consumers:
            reads[consumer].append(index)
        if value.producer is not None:
            writes[value.producer].append(index)
    return reads, writes


def _moves(problem: Problem) -> tuple[Array, Array, Array, Array]:
    """Times from the host, to the host and along direct links, and where those are."""
    devices = range(len(problem.devices))
    nbytes = np.array([value.nbytes for value in problem.values], float)
    fixed = np.array(
        [np.nan if value.transfer_us is None else value.transfer_us for value in problem.values],
        float,
    )

    def times(source: int, target: int) -> Array:
        link = problem.need_link(source, target)
        if link.shared:
            return np.zeros(len(nbytes))
        return np.where(np.isnan(fixed), link.latency_us + nbytes / link.bytes_per_us, fixed)

    up = np.stack([times(HOST, device) for device in devices], axis=1)
    down = np.stack([times(device, HOST) for device in devices], axis=1)
    is_direct = np.zeros((len(devices), len(devices)), bool)
    for source in devices:
        for target in devices:
            on_host = problem.devices[source].host_memory or problem.devices[target].host_memory
            if source != target and not on_host:
                is_direct[source, target] = problem.link(source, target) is not None
    direct = np.zeros((len(nbytes) if is_direct.any() else 1, len(devices), len(devices)))
    for source, target in np.argwhere(is_direct):
        direct[:, source, target] = times(int(source), int(target))
    return up, down, direct, is_direct


def pack(lists: Sequence[Sequence[int] | Array]) -> tuple[Array, Array]:
    """Lists of lists as a flat array and the starts."""
    start = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(items) for items in lists], out=start[1:])
    return np.array([item for items in lists for item in items], np.int64), start
