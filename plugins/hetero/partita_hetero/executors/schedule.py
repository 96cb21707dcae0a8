"""Which step of a plan waits for which, and the room that devices have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Step(Protocol):
    """What of a step decides the order."""

    @property
    def reads(self) -> tuple[int, ...]:
        """Slots that it reads."""

    @property
    def writes(self) -> tuple[int, ...]:
        """Slots that it writes."""


class Schedule:
    """Which step waits for which, derived once per plan.

    Args:
        steps: In an order in which they can run.
        devices: Step index to the device that it occupies, for steps that occupy one.
        capacity: How many steps each device runs at the same time; 1 where nothing is said.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        devices: Mapping[int, str] | None = None,
        capacity: Mapping[str, int] | None = None,
    ) -> None:
        writer = {slot: index for index, step in enumerate(steps) for slot in step.writes}
        self.count = len(steps)
        waits: list[set[int]] = [
            {writer[slot] for slot in step.reads if slot in writer} for step in steps
        ]
        self.waits = waits
        self.waiting = [len(others) for others in waits]
        self.devices = [(devices or {}).get(index, "") for index in range(len(steps))]
        self.capacity = {name: (capacity or {}).get(name, 1) for name in self.devices if name}
        self.followers: list[list[int]] = [[] for _ in steps]
        for index, others in enumerate(waits):
            for other in others:
                self.followers[other].append(index)
