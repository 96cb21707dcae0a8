"""Which rules a placement breaks, and which rules nothing can keep."""

from __future__ import annotations

from collections.abc import Sequence

from partita_hetero.planner.problem import Problem
from partita_hetero.planner.timeline import Timeline


def broken_rules(problem: Problem, assignment: Sequence[int], timeline: Timeline) -> list[str]:
    """What a placement breaks, a sentence each; empty if it keeps every rule."""
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
