"""The simulator: evaluates the cost model of a problem for a placement, without a device.

Every method of the planner reports the value that comes from here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from partita.errors import PlanError
from partita_hetero.partition.partitioner import Subgraph, partition
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Value
from partita_hetero.planner.simulation.plan import Objective
from partita_hetero.planner.simulation.timeline import Kind, Span, Timeline

Assignment = Sequence[int]


def simulate(
    problem: Problem, assignment: Assignment, objective: Objective, name: str = "predicted"
) -> Timeline:
    """The run of one request under a placement.

    Args:
        problem: Costs of tasks, links and launches.
        assignment: Device index of each task; limits and hard pins are not enforced here, see
            :func:`partita_hetero.planner.simulation.feasible.broken_rules`.
        objective: ``PARALLEL`` runs independent submodels at the same time, the others one after
            another.
        name: Of the timeline.

    Raises:
        PlanError: A device refuses a task that it is given.
    """
    return _Run(problem, assignment, objective).timeline(name)


def objective_value(
    problem: Problem, assignment: Assignment, objective: Objective, timeline: Timeline
) -> float:
    """The number that a search minimizes, in microseconds.

    Args:
        problem: What is placed.
        assignment: By task its device.
        objective: What counts: the time of a request, or of the busiest device by slot where that
            is ``"THROUGHPUT"``.
        timeline: The simulated run of the assignment.

    Returns:
        That time, with the penalties of soft pins.
    """
    penalty = penalty_us(problem, assignment)
    if objective != "THROUGHPUT":
        return timeline.latency_us + penalty
    load = timeline.load_us()
    busiest = max(
        (load[device.name] / (device.slots or math.inf) for device in problem.devices), default=0.0
    )
    return busiest + penalty


def penalty_us(problem: Problem, assignment: Assignment) -> float:
    """What the soft pins cost that a placement ignores, in microseconds."""
    return sum(
        pin.penalty_us
        for pin in problem.pins
        if not pin.hard and assignment[pin.task] != pin.device
    )


def subgraphs_of(
    problem: Problem, assignment: Assignment, objective: Objective
) -> list[Subgraph[int]]:
    """The subgraphs that HETERO would make submodels of, in an order in which they can run.

    Args:
        problem: The problem.
        assignment: For each task the index of its device.
        objective: What is planned for; islands stay apart for ``PARALLEL``.
    """
    if objective == "PARALLEL" and not problem.early_handover:
        whole = one_subgraph_each(problem, assignment)
        if whole is not None:
            return whole
    subgraphs: list[Subgraph[int]] = partition(
        problem.preds, problem.succs, list(assignment), merge_islands=objective != "PARALLEL"
    )
    return [
        own
        for subgraph in subgraphs
        for own in (
            [Subgraph(subgraph.device, (op,)) for op in subgraph.ops]
            if problem.devices[subgraph.device].per_task
            else [subgraph]
        )
    ]


def one_subgraph_each(problem: Problem, assignment: Assignment) -> list[Subgraph[int]] | None:
    """One subgraph for each device, or for each task on devices that run tasks by themselves.

    Returns:
        Them in an order in which they can run; None if there is no such order.
    """
    owner: list[int] = []
    of_device: dict[int, int] = {}
    members: list[list[int]] = []
    for op, device in enumerate(assignment):
        index = len(members)
        if not problem.devices[device].per_task:
            index = of_device.setdefault(device, index)
        if index == len(members):
            members.append([])
        members[index].append(op)
        owner.append(index)
    waits = [{owner[pred] for op in ops for pred in problem.preds[op]} for ops in members]
    sorter = TopologicalSorter({index: others - {index} for index, others in enumerate(waits)})
    try:
        order = list(sorter.static_order())
    except CycleError:
        return None
    return [Subgraph(assignment[members[index][0]], tuple(members[index])) for index in order]


@dataclass(slots=True)
class _Held:
    """A value in a device's memory, from its first span to its last."""

    device: int
    nbytes: int
    start: tuple[float, int]
    end: tuple[float, int]


class _Run:
    """Runs the submodels in simulated time and notes what happens."""

    def __init__(self, problem: Problem, assignment: Assignment, objective: Objective) -> None:
        self.problem = problem
        self.assignment = assignment
        self.subgraphs = subgraphs_of(problem, assignment, objective)
        self.spans: list[Span] = []
        self.held: dict[tuple[str, int], _Held] = {}
        self.reads: list[list[Value]] = [[] for _ in problem.tasks]
        self.writes: list[list[Value]] = [[] for _ in problem.tasks]
        for value in problem.values:
            for consumer in value.consumers:
                self.reads[consumer].append(value)
            if value.producer is not None:
                self.writes[value.producer].append(value)
        if objective == "PARALLEL":
            self._run_parallel()
        else:
            now = 0.0
            for subgraph in self.subgraphs:
                now = self._run_subgraph(subgraph, now)

    def timeline(self, name: str) -> Timeline:
        devices = tuple(device.name for device in self.problem.devices)
        return Timeline(tuple(self.spans), name, devices, self._peaks())

    def _run_parallel(self) -> None:
        """Each submodel once what it reads is there; a device takes the one that waits longest."""
        owner = {op: index for index, subgraph in enumerate(self.subgraphs) for op in subgraph.ops}
        waits = [
            {owner[pred] for op in subgraph.ops for pred in self.problem.preds[op]} - {index}
            for index, subgraph in enumerate(self.subgraphs)
        ]
        followers: list[list[int]] = [[] for _ in self.subgraphs]
        for index, others in enumerate(waits):
            for other in others:
                followers[other].append(index)
        missing = [len(others) for others in waits]
        ready = [0.0] * len(self.subgraphs)
        free = [[0.0] * (device.slots or 0) for device in self.problem.devices]
        waiting = [
            (0.0, subgraph.ops[0], index)
            for index, subgraph in enumerate(self.subgraphs)
            if not missing[index]
        ]
        heapq.heapify(waiting)
        while waiting:
            now, _, index = heapq.heappop(waiting)
            slots = free[self.subgraphs[index].device]
            end = self._run_subgraph(self.subgraphs[index], max(now, slots[0]) if slots else now)
            if slots:
                heapq.heapreplace(slots, end)
            for follower in followers[index]:
                missing[follower] -= 1
                ready[follower] = max(ready[follower], end)
                if not missing[follower]:
                    entry = (ready[follower], self.subgraphs[follower].ops[0], follower)
                    heapq.heappush(waiting, entry)

    def _run_subgraph(self, subgraph: Subgraph[int], now: float) -> float:
        """Notes one submodel that starts now; returns when it ends."""
        device = self.problem.devices[subgraph.device]
        inside = set(subgraph.ops)
        for op in subgraph.ops:
            for value in self.reads[op]:
                if value.producer not in inside:
                    now = self._move_in(value, subgraph.device, now)
        if device.launch_us:
            first = self.problem.tasks[subgraph.ops[0]].name
            now = self._span(subgraph.device, f"launch '{first}'", now, device.launch_us, "launch")
        for op in subgraph.ops:
            task = self.problem.tasks[op]
            cost = task.costs[subgraph.device].us
            if cost is None:
                raise PlanError(f"Device '{device.name}' refuses task '{task.name}'.")
            start = now
            now = self._span(subgraph.device, task.name, now, cost, "compute")
            for value in self.reads[op]:
                self._use(value, subgraph.device, start, now)
            for value in self.writes[op]:
                self._use(value, subgraph.device, start, now)
        for op in subgraph.ops:
            for value in self.writes[op]:
                if self._leaves_by_host(value, subgraph.device):
                    link = self.problem.need_link(subgraph.device, HOST)
                    now = self._transfer(value, subgraph.device, now, link.time_us(value))
        return now

    def _move_in(self, value: Value, device: int, now: float) -> float:
        """Brings a value to a device unless the device has it."""
        if (value.name, device) in self.held:
            return now
        if self.problem.devices[device].host_memory:
            return self._transfer(value, device, now, 0.0)
        source = HOST if value.producer is None else self.assignment[value.producer]
        link = self.problem.link(source, device) or self.problem.need_link(HOST, device)
        return self._transfer(value, device, now, link.time_us(value))

    def _leaves_by_host(self, value: Value, device: int) -> bool:
        if self.problem.devices[device].host_memory:
            return False
        if value.is_output:
            return True
        targets = {self.assignment[consumer] for consumer in value.consumers} - {device}
        return any(
            self.problem.devices[target].host_memory or self.problem.link(device, target) is None
            for target in targets
        )

    def _transfer(self, value: Value, device: int, now: float, us: float) -> float:
        end = now
        if us:
            end = self._span(device, value.name, now, us, "transfer", value.nbytes)
        self._use(value, device, now, end)
        return end

    def _span(
        self, device: int, name: str, now: float, us: float, kind: Kind, nbytes: int = 0
    ) -> float:
        """Notes what a device does, and returns when it is done.

        Args:
            device: The device's index.
            name: What the timeline shows.
            now: When it begins, in microseconds from the request's start.
            us: How long it takes, in microseconds.
            kind: What it is.
            nbytes: What it moves.
        """
        label = self.problem.devices[device].name
        self.spans.append(Span(label, name, now, now + us, kind, nbytes))
        return now + us

    def _use(self, value: Value, device: int, start: float, end: float) -> None:
        """The device holds the value at least from start to end."""
        step = len(self.spans)
        held = self.held.get((value.name, device))
        if held is None:
            self.held[value.name, device] = _Held(device, value.nbytes, (start, step), (end, step))
        else:
            held.end = max(held.end, (end, step))

    def _peaks(self) -> dict[str, int]:
        """Weights, and the most bytes of values alive at one time, of each device."""
        weights = [0] * len(self.problem.devices)
        for task, place in zip(self.problem.tasks, self.assignment, strict=True):
            weights[place] += task.weight_bytes
        events: list[list[tuple[float, int, int]]] = [[] for _ in self.problem.devices]
        for held in self.held.values():
            events[held.device].append((*held.start, held.nbytes))
            events[held.device].append((held.end[0], held.end[1] + 1, -held.nbytes))
        peaks = {}
        for index, device in enumerate(self.problem.devices):
            now = most = 0
            for _, _, change in sorted(events[index]):
                now += change
                most = max(most, now)
            peaks[device.name] = weights[index] + most
        return peaks
