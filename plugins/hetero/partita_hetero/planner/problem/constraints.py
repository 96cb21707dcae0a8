"""User constraints applied to a problem: a subset of devices, memory limits and pins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partita.errors import PlanError
from partita_hetero.options.pins import OpFacts, PinRule, resolve
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Pin

SOFT_PENALTY_US = 1e7
"""What ignoring a soft pin costs: ten seconds, so that only limits and refusals outweigh it."""


def with_devices(problem: Problem, names: Sequence[str]) -> Problem:
    """The problem on some of its devices, in another order of preference.

    Args:
        problem: The problem; it stays as it is.
        names: Names of its devices, the preferred ones first.

    Returns:
        A problem without the links and pins of other devices.

    Raises:
        PlanError: A device is not in the problem.
    """
    chosen = [problem.device_index(name) for name in names]
    position = {device: index for index, device in enumerate(chosen)} | {HOST: HOST}
    return replace(
        problem,
        devices=tuple(problem.devices[device] for device in chosen),
        tasks=tuple(
            replace(task, costs=tuple(task.costs[device] for device in chosen))
            for task in problem.tasks
        ),
        links=tuple(
            replace(link, source=position[link.source], target=position[link.target])
            for link in problem.links
            if link.source in position and link.target in position
        ),
        pins=tuple(
            replace(pin, device=position[pin.device])
            for pin in problem.pins
            if pin.device in position
        ),
    )


def with_memory(problem: Problem, limits: Mapping[str, int]) -> Problem:
    """The problem with other memory limits, in bytes, for some devices.

    Raises:
        PlanError: A device is not in the problem.
    """
    by_index = {problem.device_index(name): limit for name, limit in limits.items()}
    devices = tuple(
        replace(device, memory_bytes=by_index.get(index, device.memory_bytes))
        for index, device in enumerate(problem.devices)
    )
    return replace(problem, devices=devices)


def with_rules(problem: Problem, rules: Sequence[PinRule]) -> Problem:
    """The problem with pins for all tasks that hold an operation that a rule matches.

    A soft pin on a device that refuses the task is left out.

    Raises:
        PlanError: A rule matches nothing or names a device that is not there, or two rules
            disagree on operations of one task.
    """
    facts: list[OpFacts] = []
    homes: list[int] = []
    for index, task in enumerate(problem.tasks):
        names = task.ops or (task.name,)
        types = task.op_types if len(task.op_types) == len(names) else ("",) * len(names)
        for name, op_type in zip(names, types, strict=True):
            domain, _, plain = op_type.rpartition("::")
            facts.append(OpFacts(name, plain, domain))
            homes.append(index)
    found: dict[int, tuple[str, Pin]] = {}
    for op, wish in resolve(rules, facts).items():
        home, device = homes[op], problem.device_index(wish.device)
        pin = Pin(home, device, wish.hard, 0.0 if wish.hard else SOFT_PENALTY_US)
        if not wish.hard and problem.tasks[home].costs[device].us is None:
            continue
        other = found.get(home)
        if other is not None and other[1].device != device and other[1].hard == wish.hard:
            raise PlanError(
                f"Task '{problem.tasks[home].name}' holds operations that share a device, and "
                f"{other[0]} and {wish.why} want different ones."
            )
        if other is None or (wish.hard and not other[1].hard):
            found[home] = wish.why, pin
    kept = [pin for pin in problem.pins if pin.task not in found]
    return problem.with_pins([*kept, *(pin for _, pin in found.values())])
