"""A placement problem: tasks, the values between them, and what devices and links cost.

This is the cost table that ``partita plan --costs table.json`` reads. Times are microseconds and
sizes bytes. The cost model, which :mod:`partita_hetero.planner.simulation.simulate` carries out:

- Neighbouring tasks of one device form a submodel. A submodel starts once all that it reads is
  there, moves in what its device does not hold yet, pays the launch, runs its tasks one after
  another, and moves out what others need through the host.
- A value is moved once to each device that reads it: over the direct link if there is one,
  otherwise out to the host (once) and in from there. A device that works in host memory moves
  nothing.
- Model inputs arrive in host memory, and model outputs are wanted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from partita.errors import PlanError
from partita_hetero.planner.problem.checks import check
from partita_hetero.planner.problem.records import HOST, Device, Link, Pin, Task, Value, end_name


@dataclass(frozen=True)
class Problem:
    """All that a placement depends on; checked when it is made.

    Attributes:
        devices: In order of the user's preference.
        tasks: In an order in which they can run.
        values: What passes between tasks.
        links: Device to host and host to device for each device that does not work in host memory;
            device to device where there is a direct way.
        pins: Wishes for tasks.
        name: Of the model, for reports.
        early_handover: Whether submodels that run at the same time are cut where values cross, as
            HETERO does; otherwise a device's tasks form one submodel where all of these can run,
            and are cut so where they cannot.

    Raises:
        PlanError: Something does not fit; the message says where.
    """

    devices: tuple[Device, ...]
    tasks: tuple[Task, ...]
    values: tuple[Value, ...] = ()
    links: tuple[Link, ...] = ()
    pins: tuple[Pin, ...] = ()
    name: str = ""
    early_handover: bool = True
    _link: dict[tuple[int, int], Link] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        check(self.devices, self.tasks, self.values, self.links, self.pins)
        self._link.update({(link.source, link.target): link for link in self.links})
        for index, device in enumerate(self.devices):
            if device.host_memory:
                for ends in ((HOST, index), (index, HOST)):
                    self._link[ends] = Link(*ends, shared=True)

    def link(self, source: int, target: int) -> Link | None:
        """The direct way between two ends; None if values pass through the host."""
        if source >= 0 and self.devices[source].host_memory:
            source = HOST
        if target >= 0 and self.devices[target].host_memory:
            target = HOST
        if source == target:
            return Link(source, target, shared=True)
        return self._link.get((source, target))

    def need_link(self, source: int, target: int) -> Link:
        """The direct way between two ends of which one is the host."""
        link = self.link(source, target)
        if link is None:
            raise PlanError(f"There is no link from {self.end(source)} to {self.end(target)}.")
        return link

    def end(self, index: int) -> str:
        """Name of a device index or of the host, quoted."""
        return end_name(self.devices, index)

    def device_index(self, name: str) -> int:
        """Index of a device.

        Raises:
            PlanError: There is none of that name.
        """
        for index, device in enumerate(self.devices):
            if device.name == name:
                return index
        known = ", ".join(f"'{device.name}'" for device in self.devices)
        raise PlanError(f"There is no device '{name}'; there are {known}.")

    @cached_property
    def task_index(self) -> dict[str, int]:
        """Task name to index."""
        return {task.name: index for index, task in enumerate(self.tasks)}

    @cached_property
    def preds(self) -> list[list[int]]:
        """For each task those it reads from, without doubles."""
        preds: list[dict[int, None]] = [{} for _ in self.tasks]
        for value in self.values:
            if value.producer is not None:
                for consumer in value.consumers:
                    preds[consumer][value.producer] = None
        return [list(sources) for sources in preds]

    @cached_property
    def succs(self) -> list[list[int]]:
        """For each task those that read from it, without doubles."""
        succs: list[list[int]] = [[] for _ in self.tasks]
        for task, sources in enumerate(self.preds):
            for source in sources:
                succs[source].append(task)
        return succs

    @cached_property
    def groups(self) -> list[list[int]]:
        """Tasks that share a device, each task in exactly one list; in order of the first task."""
        members: dict[object, list[int]] = {}
        for index, task in enumerate(self.tasks):
            members.setdefault(index if task.group is None else task.group, []).append(index)
        return list(members.values())

    def with_pins(self, pins: Sequence[Pin]) -> Problem:
        """The same problem with other pins."""
        return replace(self, pins=tuple(pins))
