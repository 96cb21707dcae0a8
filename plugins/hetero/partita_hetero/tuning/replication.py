"""Replicas as candidates: a placement that uses one of several devices that compute alike, on each.

Requests are spread over replicas; what one of them gets does not depend on which, but for the last
bits where devices of one plugin are not the same (ADR 52).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from partita.errors import PartitaError, PlanError
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.planner.problem.constraints import with_devices
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import Cost, Task
from partita_hetero.planner.simulation.feasible import broken_rules
from partita_hetero.planner.simulation.plan import Plan
from partita_hetero.planner.simulation.simulate import penalty_us, simulate

_log = logging.getLogger("partita.hetero")

EVEN = 1.05
"""Replicas of which none is so many times as fast as another get as many requests."""

FREE = "a pin"
"""What would change the place of an operation that any of several devices runs."""


@dataclass(frozen=True)
class Replication:
    """A placement that can be had on several devices.

    Attributes:
        homes: The placement: operation, or task, to device.
        device: The one of its devices that others stand for.
        interchangeable: All devices that can, this one among them.
    """

    homes: Mapping[int, str]
    device: str
    interchangeable: Sequence[str]

    def every(self) -> Iterator[dict[int, str]]:
        """For each of the devices, where operations are then."""
        for device in self.interchangeable:
            yield {op: device if home == self.device else home for op, home in self.homes.items()}


@dataclass(frozen=True)
class Replicas:
    """Placements that requests are spread over.

    Attributes:
        assignments: By replica, the device index of each task.
        shares: By replica, the share of the requests.
        value_us: Time between results, see :func:`interval_us`.
    """

    assignments: Sequence[tuple[int, ...]]
    shares: Sequence[float]
    value_us: float


def interchangeable_devices(devices: DeviceList, names: Iterable[str]) -> list[list[str]]:
    """Devices between which results do not differ by chance: groups of two or more.

    They are of one plugin and one kind, and compute with the same properties, precision among them.

    Args:
        devices: The device list, with the properties of each device.
        names: Which of them to look at.
    """
    core = devices.core
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name in names:
        try:
            plugin = core.resolve_device(name).partition(".")[0]
            settings = core.fingerprint(name, devices.config(name))["properties"]
            key = plugin, core.device_info(name).kind, settings
        except PartitaError:
            continue  # a device that cannot be described is like no other
        groups.setdefault(key, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def alike(problem: Problem) -> list[list[str]]:
    """The devices of a problem that compute alike: groups of two or more."""
    groups: dict[str, list[str]] = {}
    for device in problem.devices:
        if device.alike:
            groups.setdefault(device.alike, []).append(device.name)
    return [group for group in groups.values() if len(group) > 1]


def replications(
    placements: Iterable[Mapping[int, str]], groups: Sequence[Sequence[str]]
) -> list[Replication]:
    """What of some placements uses exactly one device of a group, each form of it once.

    Args:
        placements: Operation, or task, to device; the same ones in each.
        groups: Devices that compute alike.
    """
    found: dict[tuple[str, ...], Replication] = {}
    for homes in placements:
        for group in groups:
            used = set(homes.values()) & set(group)
            if len(used) != 1:
                continue
            (device,) = used
            form = tuple(group[0] if home == device else home for home in homes.values())
            found.setdefault(form, Replication(homes, device, group))
    return list(found.values())


def plan_of_one(
    problem: Problem, group: Sequence[str], solve: Callable[[Problem], Plan]
) -> list[int] | None:
    """What is best for each of some devices that compute alike, beside those of other kinds.

    Args:
        problem: What everything costs.
        group: The devices.
        solve: Makes a plan of costs.

    Returns:
        The device index of each task, of these devices the first one's; None if there is no plan.
    """
    own = problem_of_one(problem, group)
    try:
        plan = solve(own)
    except PlanError as error:
        _log.info("no plan with %s alone of %s: %s", group[0], group, error)
        return None
    return [problem.device_index(own.devices[number].name) for number in plan.assignment]


def problem_of_one(problem: Problem, group: Sequence[str]) -> Problem:
    """The problem of one replica: the first of some devices that compute alike, and the others.

    These work for all replicas, so that for each a task costs there as many times as much.
    """
    left = [device.name for device in problem.devices if device.name not in group[1:]]
    rest = with_devices(problem, left)
    times = [1 if name == group[0] else len(group) for name in left]

    def costs(task: Task) -> tuple[Cost, ...]:
        pairs = zip(task.costs, times, strict=True)
        return tuple(
            cost if cost.us is None else replace(cost, us=cost.us * factor)
            for cost, factor in pairs
        )

    devices = zip(rest.devices, times, strict=True)
    return replace(
        rest,
        devices=tuple(replace(one, launch_us=one.launch_us * n) for one, n in devices),
        tasks=tuple(replace(task, costs=costs(task)) for task in rest.tasks),
    )


def is_possible(problem: Problem, assignment: Sequence[int]) -> bool:
    """Whether a replica keeps every rule: each device takes it, and has room for all of it."""
    placed = zip(problem.tasks, assignment, strict=True)
    if any(task.costs[place].us is None for task, place in placed):
        return False
    return not broken_rules(problem, assignment, simulate(problem, assignment, "THROUGHPUT"))


def shares_of(problem: Problem, assignments: Sequence[Sequence[int]]) -> list[float]:
    """The share of the requests that each replica should get: as many as it does in a time.

    Equal parts where that is nearly so, since measurements are not exact.
    """
    speeds = [1 / max(1e-9, interval_us(problem, [one], [1.0])) for one in assignments]
    if max(speeds) < EVEN * min(speeds):
        speeds = [1.0] * len(speeds)
    return [speed / sum(speeds) for speed in speeds]


def interval_us(
    problem: Problem, assignments: Sequence[Sequence[int]], shares: Sequence[float]
) -> float:
    """Time between results of requests that are spread over replicas, in microseconds.

    The busiest device decides, as for any plan; a device that replicas share works for all. The
    penalties of soft pins are included.

    Args:
        problem: What everything costs.
        assignments: By replica, the device index of each task.
        shares: By replica, the share of the requests that it gets.
    """
    loads = dict.fromkeys((device.name for device in problem.devices), 0.0)
    penalty = 0.0
    for assignment, share in zip(assignments, shares, strict=True):
        penalty += share * penalty_us(problem, assignment)
        alone = simulate(problem, assignment, "THROUGHPUT").load_us()
        for device, us in alone.items():
            loads[device] += share * us
    slots = {device.name: device.slots or math.inf for device in problem.devices}
    return penalty + max((us / slots[device] for device, us in loads.items()), default=0.0)


def best_replicas(problem: Problem, assignments: Iterable[Sequence[int]]) -> Replicas | None:
    """The fastest of what some placements give on devices that compute alike; None if nothing.

    Args:
        problem: What everything costs.
        assignments: The device index of each task.
    """
    names = [device.name for device in problem.devices]
    homes = [{task: names[at] for task, at in enumerate(one)} for one in assignments]
    found = []
    for replication in replications(homes, alike(problem)):
        every = [tuple(map(names.index, one.values())) for one in replication.every()]
        able = [one for one in every if is_possible(problem, one)]
        if len(able) > 1:
            shares = shares_of(problem, able)
            found.append(Replicas(able, shares, interval_us(problem, able, shares)))
    return min(found, key=lambda one: one.value_us, default=None)
