"""Feasibility: which constraints a placement violates, and which no placement can keep."""

from __future__ import annotations

from collections.abc import Sequence

from partita.errors import InfeasiblePlanError
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.simulation.simulate import one_subgraph_each
from partita_hetero.planner.simulation.timeline import Timeline


def broken_rules(problem: Problem, assignment: Sequence[int], timeline: Timeline) -> list[str]:
    """What a placement breaks, a sentence each; empty if it keeps every rule.

    Args:
        problem: The problem, with its pins, groups and limits.
        assignment: For each task the index of its device.
        timeline: Of a simulated run of that placement, for its memory.
    """
    broken = []
    for task, place in zip(problem.tasks, assignment, strict=True):
        if task.costs[place].us is None:
            name = problem.devices[place].name
            broken.append(f"Device '{name}' refuses task '{task.name}'.")
    for pin in problem.pins:
        if pin.hard and assignment[pin.task] != pin.device:
            task, name = problem.tasks[pin.task], problem.devices[pin.device].name
            broken.append(f"Task '{task.name}' is pinned to '{name}'.")
    for members in problem.groups:
        if len({assignment[member] for member in members}) > 1:
            names = ", ".join(f"'{problem.tasks[member].name}'" for member in members[:3])
            broken.append(f"Tasks {names} of one group are on different devices.")
    for device in problem.devices:
        peak = timeline.peak_bytes.get(device.name, 0)
        if device.memory_bytes is not None and peak > device.memory_bytes:
            broken.append(
                f"Device '{device.name}' needs {peak} bytes, "
                f"{peak - device.memory_bytes} more than its limit of {device.memory_bytes}."
            )
    return broken


def allowed_devices(problem: Problem) -> list[list[int]]:
    """For each group of the problem the devices that take all of it and keep its hard pins.

    Raises:
        InfeasiblePlanError: There is none for a group; says which tasks and why.
    """
    pinned: dict[int, int] = {}
    for pin in problem.pins:
        if pin.hard and pinned.setdefault(pin.task, pin.device) != pin.device:
            raise _contradiction(problem, pin.task, pin.device, pin.task, pinned[pin.task])
    return [_allowed(problem, members, pinned) for members in problem.groups]


def _allowed(problem: Problem, members: Sequence[int], pinned: dict[int, int]) -> list[int]:
    allowed = [
        device
        for device in range(len(problem.devices))
        if all(problem.tasks[member].costs[device].us is not None for member in members)
    ]
    holders = [member for member in members if member in pinned]
    if not holders:
        if not allowed:
            raise InfeasiblePlanError(_refusals(problem, members))
        return allowed
    wish = pinned[holders[0]]
    for other in holders[1:]:
        if pinned[other] != wish:
            raise _contradiction(problem, other, pinned[other], holders[0], wish)
    for member in members:
        cost = problem.tasks[member].costs[wish]
        if cost.us is None:
            raise InfeasiblePlanError(
                f"Task '{problem.tasks[holders[0]].name}' is pinned to {problem.end(wish)}, which "
                f"refuses {'it' if member in holders else repr(problem.tasks[member].name)}: "
                f"{cost.reason or 'no reason given'}."
            )
    return [wish]


def _refusals(problem: Problem, members: Sequence[int]) -> str:
    """Who refuses what, for tasks that no device takes together."""
    names = ", ".join(f"'{problem.tasks[member].name}'" for member in members)
    tasks = f"task {names}" if len(members) == 1 else f"tasks {names}, which share a device"
    whys = []
    for index, device in enumerate(problem.devices):
        for member in members:
            cost = problem.tasks[member].costs[index]
            if cost.us is None:
                what = "it" if len(members) == 1 else f"'{problem.tasks[member].name}'"
                why = f" ({cost.reason})" if cost.reason else ""
                whys.append(f"'{device.name}' refuses {what}{why}")
                break
    return f"No device takes {tasks}: {'; '.join(whys)}."


def _contradiction(
    problem: Problem, task: int, device: int, other: int, other_device: int
) -> InfeasiblePlanError:
    return InfeasiblePlanError(
        f"Task '{problem.tasks[task].name}' is pinned to {problem.end(device)}, but "
        f"'{problem.tasks[other].name}' to {problem.end(other_device)}, and they share a device."
    )


def is_contiguous(problem: Problem, assignment: Sequence[int]) -> bool:
    """Whether each device's tasks can run without a break, those that run them singly excepted."""
    return one_subgraph_each(problem, assignment) is not None
